"""The kernels of `pallas.attention`, whose equations are there.

Maps are matrices: tokens of all images by the channels of all heads, one head
behind the other. A program has a window of one head.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import wide_dtype
from gswinrmt_jax.ops.axial import HEIGHT, WIDTH
from gswinrmt_jax.pallas import launch
from gswinrmt_jax.pallas.lines import TOKENS, Windows
from gswinrmt_jax.pallas.weights import Weights


@dataclasses.dataclass(frozen=True)
class Form:
  """What a kernel is made for.

  Attributes:
    windows: Of the maps.
    weights: From scores.
    heads: Of the maps.
    channels: Of a head.
    flip: The channel of its head that each is turned with, by exclusive or
      with this; 0 for no rotation.
  """

  windows: Windows
  weights: Weights
  heads: int
  channels: int
  flip: int

  def grid(self, tokens: int) -> tuple[int, int]:
    """Returns the programs for so many tokens: windows and heads."""
    width, height = self.windows.extents
    return tokens // (width * height) * self.windows.in_map, self.heads


class Inputs(NamedTuple):
  """What both kernels read: arrays, or in a kernel the references to them.

  Attributes:
    query: Queries `[t c]`, not rotated.
    key: Keys, likewise.
    value: Values.
    log_decay: `log(gamma)` of the heads in the width pass, then the height's.
    slopes: Of ALiBi, `[n]`.
    cos: Of the angles by which the tokens of a map are turned, `[p d]`.
    sin: Of the same; negative for the first channel of each pair.
  """

  query: Array
  key: Array
  value: Array
  log_decay: Array
  slopes: Array
  cos: Array
  sin: Array


_INPUTS = len(Inputs._fields)


def forward(
    inputs: Inputs, form: Form
) -> tuple[Float[Array, 't c'], Float[Array, 't c']]:
  """Returns `V'` and `O`."""
  value = inputs.value
  like = jax.ShapeDtypeStruct(value.shape, value.dtype)
  return launch.run(
      functools.partial(_forward_kernel, form=form),
      *inputs,
      name='attention_forward',
      grid=form.grid(len(value)),
      out=(like, like),
      warps=4,
  )


def _forward_kernel(*references, form):
  inputs = Inputs(*references[:_INPUTS])
  between, out = references[_INPUTS:]
  own = _Program(form, inputs)
  passes = (WIDTH, inputs.value, between), (HEIGHT, between, out)
  for axis, given, result in passes:

    def mix(number, _, axis=axis, given=given, result=result):
      tile = form.windows.tile(own.window, axis, number)
      q, k = (own.turned(x, tile)[0] for x in (inputs.query, inputs.key))
      weigh, decay = own.weigh(tile, axis)
      weights = weigh(_product(q, k.T), decay)
      own.store(result, tile, _product(weights, own.load(given, tile)))

    lax.fori_loop(0, form.windows.tiles(axis), mix, None)
    launch.wait_for_stores()


def backward(
    inputs: Inputs,
    between: Float[Array, 't c'],
    dout: Float[Array, 't c'],
    form: Form,
) -> tuple[Array, Array, Array, Float[Array, ' m']]:
  """Returns the gradients of the first four inputs.

  Args:
    inputs: Those of `forward`.
    between: `V'`.
    dout: The gradient of `O`.
    form: What the kernel is made for.
  """
  value, log_decay = inputs.value, inputs.log_decay
  grid = form.grid(len(value))
  like = jax.ShapeDtypeStruct(value.shape, value.dtype)
  parts = jax.ShapeDtypeStruct((grid[0] * log_decay.size,), log_decay.dtype)
  *gradients, _, ddecay = launch.run(
      functools.partial(_backward_kernel, form=form),
      *inputs,
      between,
      dout,
      name='attention_backward',
      grid=grid,
      out=(like, like, like, like, parts),
      warps=8,
  )
  return *gradients, ddecay.reshape(grid[0], -1).sum(0)


def _backward_kernel(*references, form):
  inputs = Inputs(*references[:_INPUTS])
  between, dout, dquery, dkey, dvalue, dbetween, ddecay = references[_INPUTS:]
  own = _Program(form, inputs)
  passes = (
      (HEIGHT, between, dout, dbetween),
      (WIDTH, inputs.value, dbetween, dvalue),
  )
  for axis, given, gradient, result in passes:

    def differentiate(
        number, total, axis=axis, given=given, gradient=gradient, result=result
    ):
      tile = form.windows.tile(own.window, axis, number)
      q, k = (own.turned(x, tile) for x in (inputs.query, inputs.key))
      weigh, decay = own.weigh(tile, axis)
      weights, pull = jax.vjp(weigh, _product(q[0], k[0].T), decay)
      dmixed = own.load(gradient, tile)  # 0 for tokens that are not there
      own.store(result, tile, _product(weights.T, dmixed))
      dscores, dlogs = pull(_product(dmixed, own.load(given, tile).T))
      for array, left, turned in (
          (dquery, dscores, k),
          (dkey, dscores.T, q),
      ):
        added = own.turned_back([_product(left, x) for x in turned], tile)
        if axis == WIDTH:
          added += own.load(array, tile)
        own.store(array, tile, added)
      return total + dlogs

    zeros = jnp.zeros((TOKENS,), ddecay.dtype)
    total = lax.fori_loop(0, form.windows.tiles(axis), differentiate, zeros)
    launch.store_number(ddecay, own.place(axis), total.sum(0))
    launch.wait_for_stores()


class _Program:
  """The window and the head of a program, and what it does to their maps."""

  def __init__(self, form, inputs):
    self.window, self._head = pl.program_id(0), pl.program_id(1)
    self._form, self._inputs = form, inputs

  def place(self, axis):
    """Where in the parts of the decays' gradients its own is."""
    return (self.window * 2 + axis) * self._form.heads + self._head

  def load(self, array, tile):
    """Returns the head's channels of the tokens, in the array's dtype."""
    narrow = launch.load(array, tile.rows, self._columns(), tile.valid)
    return narrow.astype(array.dtype)

  def store(self, array, tile, result):
    launch.store(array, tile.rows, self._columns(), tile.valid, result)

  def turned(self, array, tile):
    """Returns them rotated, and that with each pair of channels exchanged.

    Without rotation the first alone.
    """
    flip = self._form.flip
    plain = launch.load(array, tile.rows, self._columns(), tile.valid)
    if not flip:
      return (plain.astype(array.dtype),)
    other = launch.load(array, tile.rows, self._columns(flip), tile.valid)
    cos, sin = self._tables(tile)
    both = plain * cos + other * sin, other * cos - plain * sin
    return tuple(each.astype(array.dtype) for each in both)

  def turned_back(self, products, tile):
    """Returns the gradient of what was turned, from those of `turned`."""
    if not self._form.flip:
      return products[0]
    cos, sin = self._tables(tile)
    return products[0] * cos - products[1] * sin

  def weigh(self, tile, axis):
    """Returns what turns scores into weights, and the decays it takes."""
    form = self._form
    log_decay = launch.load_number(
        self._inputs.log_decay, axis * form.heads + self._head
    )
    slope = launch.load_number(self._inputs.slopes, self._head)
    size = form.windows.sizes[axis]

    def weigh(scores, log_decay):
      return form.weights.forward(scores, tile, size, log_decay, slope)

    return weigh, jnp.full((TOKENS,), log_decay)

  def _columns(self, flip=0):
    channels = self._form.channels
    return self._head * channels + (launch.span(0, channels) ^ flip)

  def _tables(self, tile):
    columns = launch.span(0, self._form.channels)
    return (
        launch.load(table, tile.places, columns, tile.valid)
        for table in (self._inputs.cos, self._inputs.sin)
    )


def _product(left, right):
  """Of matrices, in the narrower dtype, summed in float32 at least."""
  dtype = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
  return lax.dot(
      left.astype(dtype),
      right.astype(dtype),
      precision=lax.Precision.HIGHEST if dtype.itemsize > 2 else None,
      preferred_element_type=wide_dtype(dtype),
  )
