"""Attention along the axes of a map, in shifted windows, or over all pairs.

A form of attention is a function that maps scores to weights: softmax
(Gated-SwinRMT, eq. 3), sigmoid (eq. 7), or none (RMT, eq. 3). `retention`
attends along the rows of a map, then along its columns, in windows that adapt
to the map (Gated-SwinRMT, eq. 9). `full_retention` attends over all pairs of
tokens (RMT, eq. 5).

Shapes: b batch, h w rows and columns, n heads, d channels per head; l lines,
which are rows in the width pass and columns in the height pass; p blocks of a
line. In weights `[i, j]`, i is the query and j the key.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from gswinrmt_jax.ops import padding, positions
from gswinrmt_jax.ops.layers import wide_dtype

WIDTH, HEIGHT = 0, 1  # The passes, and their rows in every `[2, n]` table.

# Finite: with -inf, gradients of a block that is all padding would be NaN.
MASKED = -1e30

# Blocks of a line have about `_BLOCK_TOKENS` tokens. Lines of fewer than
# `_LEAST_BLOCKS` are not cut. CPU ms of a gradient, whole lines and blocks:
# 128x128 tokens, 4 heads, windows of 14: 139 and 59; 8 maps of 56x56: 103 and
# 81; 8 maps of 28x28, 8 heads: 33 and 37; 64 maps of 16x16 in windows of 4, 2
# heads: 17 and 26.
_BLOCK_TOKENS, _LEAST_BLOCKS = 14, 4

# A form of attention, `weigh(scores, decay, mask, size)`. It returns the
# weights `[... n i j]` for
#   scores: Scores `[... n i j]`, scaled and with ALiBi.
#   decay: `distance log(gamma)`, to broadcast with scores; None for no decay.
#   mask: Pairs that may attend, likewise; None for all.
#   size: Effective window in tokens, of all pairs the number of tokens; if
#     images have their own, an array that broadcasts with scores.
Weigh = Callable[[Array, Array | None, Array | None, int | Array], Array]
# Distances `[... t, T]` of all pairs, `distance(height, width, extents)`.
Distance = Callable[[int, int, padding.Extents], Array]


def softmax_weights(scores, decay, mask, size):
  """Returns `softmax(scores + distance log(gamma))` over unmasked pairs.

  This is Gated-SwinRMT, eq. 3. RMT's paper multiplies by the decay after the
  softmax. Its released code adds the logarithm before the softmax, as done
  here, so rows sum to one.
  """
  del size  # Rows are normalised by their own sum.
  if decay is not None:
    scores += decay
  if mask is not None:
    scores = jnp.where(mask, scores, MASKED)
  return jax.nn.softmax(scores)


def sigmoid_weights(scores, decay, mask, size):
  """Returns `sigmoid(scores) / w_s * gamma^distance`, or 0 where masked.

  This is Gated-SwinRMT, eq. 7. `w_s` is the effective window of the axis, even
  where a region at the border of the map is smaller.
  """
  return linear_weights(jax.nn.sigmoid(scores) / size, decay, mask, size)


def linear_weights(scores, decay, mask, size):
  """Returns `scores * gamma^distance`, or 0 where masked.

  This is retention without softmax, as in RetNet (RMT, eq. 2 to 4). There, and
  in RMT's ablations that replace the softmax, a norm of each head (`head_norm`)
  and a swish gate follow. Over all pairs, that norm removes any common factor
  of a query's weights, up to its epsilon. RetNet's normalisations of the scores
  are therefore omitted.
  """
  del size  # Not normalised: `head_norm` would remove the factor.
  weights = scores if decay is None else scores * jnp.exp(decay)
  return weights if mask is None else jnp.where(mask, weights, 0)


def causal_weights(scores, decay, mask, size):
  """Returns `linear_weights` of pairs `t >= T`, and 0 for later keys.

      A[t, T] = q k^T / sqrt(d) * gamma^(t - T)  if t >= T,  else  0

  (RMT, eq. 2), if the distance is `positions.reading_distance`.
  """
  return jnp.tril(linear_weights(scores, decay, mask, size))


# By `score_fn`: along rows, then columns (`retention`), and over all pairs of
# tokens with the distance of the decay (`full_retention`).
FORMS: dict[str, Weigh] = {
    'softmax': softmax_weights,
    'sigmoid': sigmoid_weights,
    'linear': linear_weights,
}
FULL_FORMS: dict[str, tuple[Weigh, Distance]] = {
    'softmax': (softmax_weights, positions.manhattan),
    'linear': (linear_weights, positions.manhattan),
    'causal': (causal_weights, positions.reading_distance),
}


@functools.partial(
    jax.jit,
    static_argnames=(
        'window',
        'shift',
        'scaled',
        'absolute',
        'weigh',
        'passes',
    ),
)
def retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n _'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None = None,
    extents: padding.Extents = None,
    *,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = True,
    absolute: bool = False,
    weigh: Weigh = softmax_weights,
    passes: tuple[int, ...] = (WIDTH, HEIGHT),
) -> Float[Array, 'b h w n _']:
  r"""Computes decomposed attention: the width pass, then the height pass.

      V'[y, x] = sum_X A_w[y, x, X] V[y, X]
      O[y, x]  = sum_Y A_h[x, y, Y] V'[Y, x]
      A = weigh(q k^T / sqrt(d) + slope (i - j), |i - j| log(gamma), mask, w_s)

  along each row of a window, then along each column; capitals are the key's row
  and column, and `w_s` is the effective window of the axis. With the softmax
  this is Gated-SwinRMT, eq. 3, and RMT's decomposed form (RMT, eq. 6) if there
  is no window.

  A pass cuts its lines into blocks of whole windows, see `axis_blocks`, and
  masks pairs of different windows. Masked weights are exactly 0.

  Args:
    query: Queries, already rotated if they should be.
    key: Keys of the same shape.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for no
      decay.
    slopes: ALiBi slopes per head, for both passes; None for no bias.
    extents: Valid rows and columns of each map, see `ops.padding`. The result
      is that of the map without padding.
    window: Nominal window in tokens; None for whole rows and columns.
    shift: Nominal shift of the windows, in tokens.
    scaled: Whether scores are divided by `sqrt(d)`.
    absolute: Whether slopes multiply `|i - j|` instead of `i - j`.
    weigh: The form of attention; by default the softmax.
    passes: The passes, in their order.

  Returns:
    The output `A_h A_w V`, in `value.dtype`; weights are computed in at least
    float32.

  Raises:
    ValueError: If a shape or the window is wrong.
  """
  heads = query.shape[3]
  tables = {'log_decay': (log_decay, (2, heads)), 'slopes': (slopes, (heads,))}
  _check(query, key, value, **tables)
  if window is not None and window < 1:
    raise ValueError(
        f'{window=} must be at least 1, or None for the whole axis.'
    )
  for axis in passes:
    extent = value.shape[2 - axis]
    ends = None if extents is None else extents[:, 1 - axis]
    line = axis_blocks(extent, window, shift, ends)
    offset = positions.offsets(line.length)
    log_gamma = None if log_decay is None else log_decay[axis]
    out = mix_values(
        line.split(query, axis),
        line.split(key, axis),
        line.split(value, axis),
        positions.per_head(slopes, abs(offset) if absolute else offset),
        positions.per_head(log_gamma, abs(offset)),
        line.mask,
        line.size,
        scaled=scaled,
        weigh=weigh,
    )
    value = line.join(out, axis, extent)
  return value


def swat(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n _'],
    *tables: Any,
    **options: Any,
) -> Float[Array, 'b h w n _']:
  """Computes sigmoid window attention (SWAT; Gated-SwinRMT, eq. 7).

      A = sigmoid(q k^T + slope (i - j)) / w_s * gamma^|i - j|,  0 if masked

  Section 3.3 rotates queries and keys by `ops.rotate_halves`. Tables, options,
  result and errors are those of `ops.retention`.
  """
  options = {'weigh': sigmoid_weights, 'scaled': False} | options
  return retention(query, key, value, *tables, **options)


@functools.partial(jax.jit, static_argnames=('scaled', 'weigh', 'distance'))
def full_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n _'],
    log_decay: Float[Array, '...'] | None,
    extents: padding.Extents = None,
    *,
    scaled: bool = True,
    weigh: Weigh = softmax_weights,
    distance: Distance = positions.manhattan,
) -> Float[Array, 'b h w n _']:
  r"""Computes Manhattan self-attention (MaSA; RMT, eq. 5, as released).

      O[t] = sum_T A[t, T] V[T]
      A = weigh(q k^T / sqrt(d), (|row - ROW| + |col - COL|) log(gamma))

  over all pairs of tokens, `t = row W + column`; as released, with the softmax.

  Args:
    query: Queries, already rotated if they should be.
    key: Keys of the same shape.
    value: Values.
    log_decay: `log(gamma)` per head; None for no decay.
    extents: Valid rows and columns of each map, see `ops.padding`.
    scaled: Whether scores are divided by `sqrt(d)`.
    weigh: The form of attention; by default the softmax.
    distance: The distance of the decay; by default `|row - ROW| + |col - COL|`.

  Returns:
    The output `A V`, in `value.dtype`; weights are computed in at least
    float32.

  Raises:
    ValueError: If a shape is wrong.
  """
  batch, height, width, heads, _ = query.shape
  _check(query, key, value, log_decay=(log_decay, (heads,)))
  mask, size = None, height * width
  if extents is not None:
    mask = padding.valid(extents, height, width).reshape(batch, 1, 1, -1)
    size = extents.prod(1).reshape(batch, 1, 1, 1)

  def tokens(x):
    return x.reshape(batch, height * width, heads, -1).swapaxes(1, 2)

  out = mix_values(
      tokens(query),
      tokens(key),
      tokens(value),
      None,
      positions.per_head(log_decay, distance(height, width, extents)),
      mask,
      size,
      scaled=scaled,
      weigh=weigh,
  )
  return out.swapaxes(1, 2).reshape(value.shape)


def axial_weights(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    *tables: Any,
    **options: Any,
) -> tuple[Float[Array, 'b h n w w'], Float[Array, 'b w n h h']]:
  """Returns the weights `(A_w, A_h)` of the passes of `ops.retention`.

  They are those of whole rows `[b y n x X]` and columns `[b x n y Y]`, 0
  between windows. The weights of key `X` are what a pass makes of values that
  are 1 at `X` and 0 elsewhere. Arguments and errors are those of
  `ops.retention`, without values.
  """
  _, height, width, _, _ = query.shape
  at_column = jnp.eye(width)[None, None, :, None]
  at_row = jnp.eye(height)[None, :, None, None]

  def one_pass(axis, unit):
    shape = (*query.shape[:4], unit.shape[-1])
    unit = jnp.broadcast_to(unit, shape).astype(wide_dtype(query.dtype))
    return retention(query, key, unit, *tables, passes=(axis,), **options)

  return (
      one_pass(WIDTH, at_column).swapaxes(2, 3),  # [b y x n X]
      one_pass(HEIGHT, at_row).transpose(0, 2, 3, 1, 4),  # [b y x n Y]
  )


def full_weights(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    *tables: Any,
    **options: Any,
) -> Float[Array, 'b n t t']:
  """Returns the weights `A[t, T]` of `ops.full_retention`, as `[b n t T]`.

  Arguments and errors are those of `ops.full_retention`, without values.
  """
  batch, height, width, heads, _ = query.shape
  count = height * width
  unit = jnp.eye(count).reshape(1, height, width, 1, count)
  unit = jnp.broadcast_to(unit, (*query.shape[:4], count))
  unit = unit.astype(wide_dtype(query.dtype))
  out = full_retention(query, key, unit, *tables, **options)
  return out.reshape(batch, count, heads, count).swapaxes(1, 2)


def mix_values(
    query: Float[Array, '... i d'],
    key: Float[Array, '... j d'],
    value: Float[Array, '... j c'],
    bias: Array | None,
    decay: Array | None,
    mask: Array | np.ndarray | None,
    size: int | Array,
    *,
    scaled: bool,
    weigh: Weigh,
) -> Float[Array, '... i c']:
  """Mixes the values of each line, `sum_j weigh(q k^T / sqrt(d) + bias) v_j`.

  Args:
    query: Queries.
    key: Keys.
    value: Values.
    bias: Added to the scores, `[... n i j]`; None for no bias.
    decay: See `Weigh`, as `[... n i j]`.
    mask: See `Weigh`.
    size: See `Weigh`.
    scaled: Whether scores are divided by `sqrt(d)`.
    weigh: The form of attention.

  Returns:
    The mixed values, in `value.dtype`.
  """
  wide = wide_dtype(query.dtype)
  scores = jnp.einsum(
      '...id,...jd->...ij', query, key, preferred_element_type=wide
  )
  if scaled:
    scores *= query.shape[-1] ** -0.5
  if bias is not None:
    scores += jnp.expand_dims(bias, range(scores.ndim - bias.ndim))
  if decay is not None:
    decay = jnp.expand_dims(decay, range(scores.ndim - decay.ndim))
  weights = weigh(scores, decay, mask, size).astype(value.dtype)
  out = jnp.einsum(
      '...ij,...jd->...id', weights, value, preferred_element_type=wide
  )
  return out.astype(value.dtype)


def effective_window(
    extent: int, window: int | None, shift: int
) -> tuple[int, int]:
  """Adapts window and shift to one axis of the map (Gated-SwinRMT, eq. 9).

      M^ = min(M, extent),    s^ = min(s, floor(M^ / 2))

  Eq. 9 takes one minimum over both axes. Where a single window covers the axis,
  `s^ = 0`: a shift would cut the global attention that the paper asks for.

  Args:
    extent: Tokens along the axis.
    window: Nominal window `M` in tokens; None is the whole axis.
    shift: Nominal shift `s` in tokens.

  Returns:
    `(M^, s^)`.
  """
  if window is None or window >= extent:
    return extent, 0
  return window, min(shift, window // 2)


def window_index(
    position: Int[Array | np.ndarray, '...'],
    window: int,
    shift: int | Int[Array, '...'],
) -> Int[Array | np.ndarray, '...']:
  """Returns the index of the shifted window that contains a position.

      r(j) = floor((j - s) / M), counted from -1 or 0

  Two positions of the unshifted map have equal indices exactly if Swin's cyclic
  shift and mask let them attend to each other.
  """
  return (position - shift) // window


class Blocks(NamedTuple):
  """The blocks into which a pass cuts its lines.

  Attributes:
    count: Blocks `p` of a line.
    length: Tokens of a block.
    front: Tokens of padding before the line.
    size: Effective window, see `Weigh`.
    mask: Pairs that may attend, to broadcast with `[b l p n i j]`; None: all.
  """

  count: int
  length: int
  front: int
  size: int | Array
  mask: np.ndarray | Array | None

  def split(
      self, x: Float[Array, 'b h w n d'], axis: int
  ) -> Float[Array, 'b l p n i d']:
    """Cuts rows (WIDTH) or columns (HEIGHT) of a map, padded with zeros."""
    along = 2 - axis  # of a map `[b h w n d]`
    behind = self.count * self.length - self.front - x.shape[along]
    if self.front or behind:
      pads = [(0, 0)] * x.ndim
      pads[along] = self.front, behind
      x = jnp.pad(x, pads)
    cut = self.count, self.length
    x = x.reshape(*x.shape[:along], *cut, *x.shape[along + 1 :])
    # Explicit transposition: with matmuls in the original layout, XLA's CPU
    # backend took twice as long, forward and backward.
    return x.transpose(_ORDER[axis])

  def join(
      self, x: Float[Array, 'b l p n i d'], axis: int, extent: int
  ) -> Float[Array, 'b h w n d']:
    """Undoes `split` for a map of this extent along the axis."""
    x = x.transpose(np.argsort(_ORDER[axis]))  # the inverse permutation
    along = 2 - axis
    x = x.reshape(*x.shape[:along], -1, *x.shape[along + 2 :])
    if x.shape[along] == extent:
      return x
    return jax.lax.slice_in_dim(x, self.front, self.front + extent, axis=along)


# From rows `[b h p i n d]` and columns `[b p i w n d]` to `[b l p n i d]`.
_ORDER = {WIDTH: (0, 1, 2, 4, 3, 5), HEIGHT: (0, 3, 1, 4, 2, 5)}


def axis_blocks(
    extent: int,
    window: int | None,
    shift: int,
    ends: Int[Array, ' b'] | None = None,
) -> Blocks:
  """Cuts lines of `extent` tokens into blocks of `k` whole windows.

  A block has about 14 tokens, and at least one window, so that the cost per
  token does not grow with the map. A line is a single block if it would have
  fewer than four, as it is then faster. It also is one if images have `ends` of
  their own: their windows are shifted by different numbers of tokens, and
  windows and mask of each image are those of its map without padding. Padding
  is never a key.

  Shifted windows begin `(M^ - s^) mod M^` tokens before the line.

  Args:
    extent: Tokens along the axis.
    window: Nominal window in tokens; None is the whole axis.
    shift: Nominal shift in tokens.
    ends: Valid tokens of each image; None for all.
  """
  size, shift = effective_window(extent, window, shift)
  length = size * max(1, round(_BLOCK_TOKENS / size))
  front = -shift % size
  count = -(-(front + extent) // length)
  if ends is not None or -(-extent // length) < _LEAST_BLOCKS:
    count, length, front = 1, extent, 0
  position = np.arange(count * length).reshape(1, count, length) - front
  valid = (position >= 0) & (position < extent)
  if ends is not None:
    # Each image has the windows of a map of its own size.
    ends = ends[:, None, None]
    valid = position < ends
    shift = jnp.where(ends > size, shift, 0)
  index = window_index(position, size, shift)
  mask = index[..., :, None] == index[..., None, :]
  mask &= valid[..., None, :]  # Padding is no key.
  if ends is not None:
    size = jnp.minimum(ends, size)[..., None, None, None]
  elif mask.all():
    return Blocks(count, length, front, size, None)
  return Blocks(count, length, front, size, mask[:, None, :, None])


def _check(query, key, value, **tables):
  """Raises ValueError for a wrong shape, of which some would broadcast."""
  if query.shape != key.shape or query.shape[:4] != value.shape[:4]:
    raise ValueError(
        'Queries, keys and values must be maps [b, h, w, n, d] of one shape, '
        f'not {query.shape}, {key.shape} and {value.shape}.'
    )
  for name, (array, shape) in tables.items():
    if array is not None and array.shape != shape:
      raise ValueError(f'{name} must be of shape {shape}, not {array.shape}.')
