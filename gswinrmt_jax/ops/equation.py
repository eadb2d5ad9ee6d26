"""Equations, and the registry of their faster forms.

An equation is plain `jnp`. A form is another function of the same arguments
and results that some device computes faster; `gswinrmt_jax.fast` has them.

    @equation
    def depthwise_conv(x, kernel):
      ...

    @depthwise_conv.form('shift', on='cpu', choice='depthwise')
    def by_shifts(x, kernel):
      ...

A program takes a form on its device, wherever it was traced or compiled, unless
`plain` or `forms` say otherwise.
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


# JAX traces a jitted function again where this has another value.
_chosen = jax.make_user_context(_Chosen())


@contextlib.contextmanager
def plain() -> Iterator[None]:
  """Takes no faster form of an equation inside, only those `forms` names."""
  with _chosen(dataclasses.replace(_chosen.value, plain=True)):
    yield


@contextlib.contextmanager
def forms(
    *, attention: str = 'auto', depthwise: str = 'auto'
) -> Iterator[None]:
  """Selects how functions traced inside are computed; results are the same.

  Args:
    attention: How shifted windows are computed: 'banded' attends each whole
      row and column under a block-diagonal mask; 'cyclic' pads, rolls, cuts
      into windows, attends and undoes it. 'auto' is 'banded'.
    depthwise: How depthwise convolutions are computed: 'shift' adds shifted
      products, 'conv' is XLA's grouped convolution. 'auto' is 'shift' on a CPU
      and 'conv' elsewhere.

  Raises:
    ValueError: If one is not known.
  """
  chosen = {'attention': attention, 'depthwise': depthwise}
  for name, value in chosen.items():
    if value not in CHOICES[name]:
      raise ValueError(f'{name}={value!r} is not one of {CHOICES[name]}.')
  with _chosen(dataclasses.replace(_chosen.value, **chosen)):
    yield


def chosen(name: str) -> str:
  """Returns what `forms` chose for a name in `CHOICES`."""
  return getattr(_chosen.value, name)


@dataclasses.dataclass(frozen=True)
class Form:
  """Another way to compute an equation.

  Attributes:
    name: Its name, among the values of `choice` if it has one.
    function: Takes the arguments of the equation.
    on: The kind of device that it is faster on, as JAX names it.
    when: Whether it is for these arguments.
    choice: The argument of `forms` that chooses it; '' for none.
  """

  name: str
  function: Callable[..., Any]
  on: str
  when: Callable[..., bool]
  choice: str


class Equation:
  """A function of arrays, traced once for each shape, with its forms.

  Attributes:
    function: The equation itself.
    forms: The other forms; the first that fits is taken.
  """

  def __init__(self, function: Callable[..., Any]):
    """Wraps the equation; see `equation`."""
    functools.update_wrapper(self, function)
    self.function = function
    self.forms: list[Form] = []
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
    """Computes the equation, by the form that fits where it runs."""
    bound = self._signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return self._traced(*bound.args, **bound.kwargs)

  def form(
      self,
      name: str,
      *,
      on: str,
      when: Callable[..., bool] = lambda *arrays, **options: True,
      choice: str = '',
  ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that adds a form; arguments as in `Form`."""

    def add(function):
      self.forms.append(Form(name, function, on, when, choice))
      return function

    return add

  def _compute(self, arrays, options):
    equation = functools.partial(self.function, **options)
    by_device = {}
    for form in self.forms:
      wanted = chosen(form.choice) if form.choice else 'auto'
      if not form.when(*arrays, **options) or wanted not in ('auto', form.name):
        continue
      function = functools.partial(form.function, **options)
      if wanted == form.name:
        return function(*arrays)
      if not _chosen.value.plain:
        by_device.setdefault(form.on, function)
    if not by_device:
      return equation(*arrays)
    return lax.platform_dependent(*arrays, default=equation, **by_device)


def equation(function: Callable[..., Any]) -> Equation:
  """Decorates an equation: traced once for each shape, open to other forms.

  A model calls an equation in every layer. Traced again for each, a deep model
  takes seconds of Python before XLA begins.

  Args:
    function: Arrays, or None, are its positional parameters; those that are
      keyword-only are hashable and part of the program.
  """
  return Equation(function)


def wide_dtype(dtype: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
  """Returns the dtype of sums and constants: float32 at least."""
  return jnp.promote_types(dtype, jnp.float32)


def wide(x: Float[Array | np.ndarray, '*b']) -> Float[Array, '*b']:
  """Returns the array in float32 at least."""
  return jnp.asarray(x, wide_dtype(x.dtype))
