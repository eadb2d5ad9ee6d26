"""Equations that are traced once for all layers of a shape."""

from collections.abc import Callable
import functools
import inspect
from typing import ParamSpec, TypeVar

import jax

from gswinrmt_jax.ops.backend import platform

_P = ParamSpec('_P')
_R = TypeVar('_R')


def traced_once(
    *static: str,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
  """Returns a decorator: `jax.jit`, with a program for each kind of device.

  A model calls an equation in every layer. Traced anew at each call, with its
  derivative and its lowering, a deep model costs seconds of Python. XLA puts
  the program in wherever it is called.

  A derivative is traced where it is first taken, for the kind of device that is
  chosen there: take it where the equation is called.

  Args:
    *static: Names of the arguments that are no arrays. They are hashable and
      keyword-only: JAX would trace one that is given by position.

  Raises:
    TypeError: If a name is not one of a keyword-only argument.
  """

  def decorate(function):
    arguments = inspect.signature(function).parameters
    for name in static:
      if name not in arguments or (
          arguments[name].kind is not inspect.Parameter.KEYWORD_ONLY
      ):
        raise TypeError(
            f"'{name}' is no keyword-only argument of {function.__name__}"
        )

    def traced(kind_of_device, *args, **kwargs):
      del kind_of_device  # JAX keeps a program for each.
      return function(*args, **kwargs)

    traced.__name__ = function.__name__  # in jaxprs and profiles
    traced = jax.jit(traced, static_argnums=0, static_argnames=static)

    @functools.wraps(function)
    def call(*args, **kwargs):
      return traced(platform(), *args, **kwargs)

    return call

  return decorate
