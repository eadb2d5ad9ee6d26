"""Equations that are traced once for all layers of a shape."""

from collections.abc import Callable
import functools
from typing import ParamSpec, TypeVar

import jax

from gswinrmt_jax.ops.backend import platform

_P = ParamSpec('_P')
_R = TypeVar('_R')


def traced_once(
    *static: str,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
  """Returns a decorator: `jax.jit`, with a program for each kind of device.

  A model calls an equation in every layer. Traced anew at each call, derivative
  and lowering included, a deep model takes Python as long as it takes XLA. XLA
  puts the program in wherever it is called: what is compiled stays the same.

  Args:
    *static: Names of the arguments that are no arrays, which are hashable and
      given by name.
  """

  def decorate(function):
    def traced(on, *args, **kwargs):
      del on  # What the equation itself asks for.
      return function(*args, **kwargs)

    traced.__name__ = function.__name__  # in jaxprs and profiles
    traced = jax.jit(traced, static_argnums=0, static_argnames=static)

    @functools.wraps(function)
    def call(*args, **kwargs):
      return traced(platform(), *args, **kwargs)

    return call

  return decorate
