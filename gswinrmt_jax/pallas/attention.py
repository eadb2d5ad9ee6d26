r"""Attention along rows, then columns, of windows: both passes in one kernel.

    V' = A_w V    O = A_h V'

with `A` from the same rotated queries and keys in both. A program has a window
of one head, whose maps are read and written once: nothing that is computed from
pairs leaves the chip, nothing is brought into another order before, and a
shifted window reads where its tokens are. `V'` is written, since other threads
read it, and kept. Backward, first of the columns, then of the rows,

    dA_h = dO V'^T    dV' = A_h^T dO    dA_w = dV' V^T    dV = A_w^T dV'

and for both `dq = s dS k`, `dk = s dS^T q`, turned back.
"""

import dataclasses
import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import rotary
from gswinrmt_jax.ops import window as window_lib
from gswinrmt_jax.ops.arrays import wide, wide_dtype
from gswinrmt_jax.ops.axial import HEIGHT, WIDTH
from gswinrmt_jax.ops.traced import traced_once
from gswinrmt_jax.pallas import launch
from gswinrmt_jax.pallas.lines import LONGEST, Windows
from gswinrmt_jax.pallas.weights import Weights

_LEAST_CHANNELS = 16  # of a head: a side of a matrix unit
_STATIC = ('window', 'shift', 'scaled', 'absolute', 'rotation')


@traced_once(*_STATIC)
def retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '2 n'] | None,
    *,
    slopes: Float[Array, ' n'] | None = None,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = True,
    absolute: bool = False,
    rotation: rotary.Rotation | None = None,
) -> Float[Array, 'b h w n d']:
  """`ops.retention` by a kernel; see there."""
  static = window, shift, scaled, absolute, rotation
  return _attend(query, key, value, log_decay, slopes, *static, softmax=True)


@traced_once(*_STATIC)
def swat(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '2 n'] | None,
    *,
    slopes: Float[Array, ' n'] | None = None,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = False,
    absolute: bool = False,
    rotation: rotary.Rotation | None = None,
) -> Float[Array, 'b h w n d']:
  """`ops.swat` by a kernel; see there."""
  static = window, shift, scaled, absolute, rotation
  return _attend(query, key, value, log_decay, slopes, *static, softmax=False)


@dataclasses.dataclass(frozen=True)
class _Form:
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


def _attend(
    query,
    key,
    value,
    log_decay,
    slopes,
    window,
    shift,
    scaled,
    absolute,
    rotation,
    *,
    softmax,
):
  _, height, width, heads, channels = value.shape
  columns = window_lib.effective(width, window, shift)
  rows = window_lib.effective(height, window, shift)
  sizes = columns[0], rows[0]
  if max(sizes) > LONGEST:
    raise ValueError(
        f"attention_impl='pallas' is for lines of at most {LONGEST} tokens, "
        f"not {max(sizes)}: set attention_impl='auto'"
    )
  if channels < _LEAST_CHANNELS or channels & (channels - 1):
    raise ValueError(
        "attention_impl='pallas' is for heads of 16, 32, 64 ... channels, not "
        f"{channels}: set attention_impl='auto'"
    )
  flip = 0
  if rotation is not None:
    flip = 1 if rotation.axis == -1 else channels // 2
  form = _Form(
      Windows((width, height), sizes, (columns[1], rows[1])),
      Weights(softmax, channels**-0.5 if scaled else 1.0, absolute, sizes),
      heads,
      channels,
      flip,
  )
  dtype = wide_dtype(value.dtype)
  if log_decay is None:
    log_decay = jnp.zeros((2, heads), dtype)
  if slopes is None:
    slopes = jnp.zeros((heads,), dtype)
  cos = sin = np.zeros((1, channels))  # not read
  if rotation is not None:
    cos, sin = _tables(rotation, height, width)
  maps = (m.reshape(-1, heads * channels) for m in (query, key, value))
  constants = wide(slopes), jnp.asarray(cos, dtype), jnp.asarray(sin, dtype)
  out = _both(*maps, wide(log_decay).reshape(-1), constants, form)
  return out.reshape(value.shape)


def _tables(rotation, height, width):
  """Cosines, and sines with their signs, of each token's channels, float64."""
  across, down = rotation.strides
  position = np.arange(height)[:, None] * down + np.arange(width) * across
  angle = position.reshape(-1, 1) * rotation.frequencies
  signs = np.array([-1.0, 1.0])
  if rotation.axis == -1:
    cos, sin = np.cos(angle).repeat(2, 1), np.sin(angle).repeat(2, 1)
    sin *= np.tile(signs, angle.shape[1])
  else:
    cos, sin = np.tile(np.cos(angle), 2), np.tile(np.sin(angle), 2)
    sin *= signs.repeat(angle.shape[1])
  return cos, sin


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _both(query, key, value, log_decay, constants, form):
  return _forward(query, key, value, log_decay, constants, form)[0]


def _forward(query, key, value, log_decay, constants, form):
  like = jax.ShapeDtypeStruct(value.shape, value.dtype)
  arrays = query, key, value, log_decay, *constants
  between, out = launch.launch(
      functools.partial(_forward_kernel, form=form),
      *arrays,
      grid=_grid(value, form),
      out=(like, like),
      warps=4,
  )
  return out, (arrays, between)


def _grid(value, form):
  width, height = form.windows.extents
  images = value.shape[0] // (width * height)
  return images * form.windows.in_map, form.heads


def _forward_kernel(
    query, key, value, log_decay, slopes, cos, sin, between, out, *, form
):
  own = _Program(form, log_decay, slopes, cos, sin)
  passes = (WIDTH, value, between), (HEIGHT, between, out)
  for axis, given, result in passes:

    def mix(number, _, axis=axis, given=given, result=result):
      tile = form.windows.tile(own.window, axis, number)
      q, k = (own.turned(each, tile)[0] for each in (query, key))
      weigh, decay = own.weigh(tile, axis)
      weights = weigh(_product(q, k.T), decay)
      own.store(result, tile, _product(weights, own.load(given, tile)))

    lax.fori_loop(0, form.windows.tiles(axis), mix, None)
    launch.wait_for_stores()


def _backward(form, residuals, dout):
  arrays, between = residuals
  _, _, value, log_decay, *constants = arrays
  grid = _grid(value, form)
  like = jax.ShapeDtypeStruct(value.shape, value.dtype)
  parts = jax.ShapeDtypeStruct((grid[0] * log_decay.size,), log_decay.dtype)
  dquery, dkey, dvalue, _, ddecay = launch.launch(
      functools.partial(_backward_kernel, form=form),
      *arrays,
      between,
      dout,
      grid=grid,
      out=(like, like, like, like, parts),
      warps=4,
  )
  ddecay = ddecay.reshape(grid[0], -1).sum(0)
  # The others are constants.
  return dquery, dkey, dvalue, ddecay, tuple(map(jnp.zeros_like, constants))


def _backward_kernel(
    query,
    key,
    value,
    log_decay,
    slopes,
    cos,
    sin,
    between,
    dout,
    dquery,
    dkey,
    dvalue,
    dbetween,
    ddecay,
    *,
    form,
):
  own = _Program(form, log_decay, slopes, cos, sin)
  passes = (HEIGHT, between, dout, dbetween), (WIDTH, value, dbetween, dvalue)
  for axis, given, gradient, result in passes:

    def differentiate(
        number, total, axis=axis, given=given, gradient=gradient, result=result
    ):
      tile = form.windows.tile(own.window, axis, number)
      q, k = (own.turned(each, tile) for each in (query, key))
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

    zeros = jnp.zeros((form.windows.tokens(axis),), log_decay.dtype)
    total = lax.fori_loop(0, form.windows.tiles(axis), differentiate, zeros)
    launch.store_number(ddecay, own.place(axis), total.sum(0))
    launch.wait_for_stores()


class _Program:
  """The window and the head of a program, and what it does to their maps."""

  def __init__(self, form, log_decay, slopes, cos, sin):
    self.window, self._head = pl.program_id(0), pl.program_id(1)
    self._form, self._cos, self._sin = form, cos, sin
    self._log_decay, self._slopes = log_decay, slopes

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
        self._log_decay, axis * form.heads + self._head
    )
    slope = launch.load_number(self._slopes, self._head)

    def weigh(scores, log_decay):
      return form.weights.forward(scores, tile, axis, log_decay, slope)

    tokens = form.windows.tokens(axis)
    return weigh, jnp.full((tokens,), log_decay)

  def _columns(self, flip=0):
    channels = self._form.channels
    return self._head * channels + (launch.span(0, channels) ^ flip)

  def _tables(self, tile):
    columns = launch.span(0, self._form.channels)
    return (
        launch.load(table, tile.places, columns, tile.valid)
        for table in (self._cos, self._sin)
    )


def _product(left, right):
  """Of matrices, in the narrower of their dtypes, summed in float32 at least."""
  dtype = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
  return lax.dot(
      left.astype(dtype),
      right.astype(dtype),
      precision=lax.Precision.HIGHEST if dtype.itemsize > 2 else None,
      preferred_element_type=wide_dtype(dtype),
  )


_both.defvjp(_forward, _backward)
