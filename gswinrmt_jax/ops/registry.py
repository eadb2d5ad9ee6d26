"""Equations and the registry of their faster implementations.

An equation is plain `jnp`. An implementation is another function with the same
arguments and results that is faster on some device. Implementations are in
`gswinrmt_jax.fast`.

    @equation
    def depthwise_conv(x, kernel):
      ...

    @depthwise_conv.implementation('shift', on='cpu', choice='depthwise')
    def by_shifts(x, kernel):
      ...

A program uses the implementation for the device that it runs on, regardless of
where it was traced or compiled, unless `plain` or `implementations` is used.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import inspect
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

CHOICES = {
    'attention': ('auto', 'banded', 'cyclic'),
    'depthwise': ('auto', 'shift', 'conv'),
}


@dataclasses.dataclass(frozen=True)
class _Chosen:
  plain: bool = False
  attention: str = 'auto'
  depthwise: str = 'auto'


# JAX retraces a jitted function when this value differs.
_chosen = jax.make_user_context(_Chosen())


@contextlib.contextmanager
def plain() -> Iterator[None]:
  """Computes the equations, except where `implementations` names another."""
  with _chosen(dataclasses.replace(_chosen.value, plain=True)):
    yield


@contextlib.contextmanager
def implementations(
    *, attention: str | None = None, depthwise: str | None = None
) -> Iterator[None]:
  """Selects how functions traced inside are computed; results are the same.

  None keeps the selection of an enclosing `implementations`, or else 'auto'.

  Args:
    attention: How shifted windows are computed: 'banded' attends along whole
      rows and columns under a block-diagonal mask; 'cyclic' pads, rolls, cuts
      into windows, attends and reverses these steps. 'auto' is 'banded'.
    depthwise: How depthwise convolutions are computed: 'shift' adds shifted
      products, 'conv' is XLA's grouped convolution. 'auto' is 'shift' on a CPU
      and 'conv' elsewhere.

  Raises:
    ValueError: If a value is unknown.
  """
  named = {'attention': attention, 'depthwise': depthwise}
  named = {name: value for name, value in named.items() if value is not None}
  for name, value in named.items():
    if value not in CHOICES[name]:
      raise ValueError(f'{name}={value!r} is not one of {CHOICES[name]}.')
  with _chosen(dataclasses.replace(_chosen.value, **named)):
    yield


def chosen(name: str, wanted: str = 'auto') -> str:
  """Returns the selected implementation for a name in `CHOICES`.

  Args:
    name: The name.
    wanted: A selection that precedes that of `implementations`; 'auto' for
      none.

  Raises:
    ValueError: If it is unknown.
  """
  if wanted not in CHOICES[name]:
    raise ValueError(f'impl={wanted!r} is not one of {CHOICES[name]}.')
  return getattr(_chosen.value, name) if wanted == 'auto' else wanted


@dataclasses.dataclass(frozen=True)
class Implementation:
  """Another way to compute an equation.

  Attributes:
    name: Its name, which is a value of `choice` if there is one.
    function: Function that takes the arguments of the equation.
    on: Platform on which it is faster, as JAX names it.
    when: Function that returns whether to use it for these arguments.
    choice: Argument of `implementations` that selects it; '' for none.
  """

  name: str
  function: Callable[..., Any]
  on: str
  when: Callable[..., bool]
  choice: str


class Equation:
  """A function of arrays, traced once per shape, with its implementations.

  A model calls an equation in every layer. Tracing it again for each layer of a
  deep model takes seconds of Python before XLA starts.

  Attributes:
    function: The equation itself. Its positional parameters are arrays or None.
      Its keyword-only parameters are hashable and static.
    implementations: Its other implementations; the first that fits is used.
  """

  def __init__(self, function: Callable[..., Any]):
    """Wraps the equation."""
    functools.update_wrapper(self, function)
    self.function = function
    self.implementations: list[Implementation] = []
    self._signature = inspect.signature(function)
    static = [
        name
        for name, argument in self._signature.parameters.items()
        if argument.kind is inspect.Parameter.KEYWORD_ONLY
    ]

    def traced(*arrays, **options):
      return self._compute(arrays, options)

    traced.__name__ = function.__name__  # in programs and profiles
    self._traced = jax.jit(traced, static_argnames=static)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Computes the equation with the implementation for the device."""
    bound = self._signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return self._traced(*bound.args, **bound.kwargs)

  def implementation(
      self,
      name: str,
      *,
      on: str,
      when: Callable[..., bool] = lambda *arrays, **options: True,
      choice: str = '',
  ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that registers an `Implementation`."""

    def add(function):
      self.implementations.append(
          Implementation(name, function, on, when, choice)
      )
      return function

    return add

  def _compute(self, arrays, options):
    equation = functools.partial(self.function, **options)
    by_device = {}
    for other in self.implementations:
      wanted = chosen(other.choice) if other.choice else 'auto'
      fits = other.when(*arrays, **options)
      if not fits or wanted not in ('auto', other.name):
        continue
      function = functools.partial(other.function, **options)
      if wanted == other.name:
        jax.eval_shape(equation, *arrays)  # its checks of the arguments
        return function(*arrays)
      if not _chosen.value.plain:
        by_device.setdefault(other.on, function)
    if not by_device:
      return equation(*arrays)
    return lax.platform_dependent(*arrays, default=equation, **by_device)


# The decorator.
equation = Equation


def wide_dtype(dtype: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
  """Returns the dtype of sums and constants: at least float32."""
  return jnp.promote_types(dtype, jnp.float32)


def wide(x: Float[Array | np.ndarray, '*b']) -> Float[Array, '*b']:
  """Returns the array in at least float32."""
  return jnp.asarray(x, wide_dtype(x.dtype))
