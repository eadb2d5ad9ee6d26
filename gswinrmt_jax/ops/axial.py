"""Attention along rows, then along columns, within shifted windows.

Letters, here and in every einsum of the package: b batch (in the cyclic form
with the windows folded in), h w rows and columns, n heads, d channels per
head. A capital is the key side of its axis: `w` asks, `W` is asked.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import blocked
from gswinrmt_jax.ops import rotary as rotary_lib
from gswinrmt_jax.ops import window as window_lib
from gswinrmt_jax.ops.arrays import is_large, wide_dtype
from gswinrmt_jax.ops.backend import platform
from gswinrmt_jax.ops.launches import in_one_launch

IMPLEMENTATIONS = ('auto', 'banded', 'cyclic', 'blocked')
WIDTH, HEIGHT = 0, 1  # Rows of every `[2, n]` table: the pass they belong to.

# Of so many tokens XLA makes one kernel of rotation, scores and softmax. Maps
# read or written, forward and backward, compiled for an H200: 44 if rotated
# before, 80 if turned by the scores in lines of 28 tokens; 119 and 140 of 56.
_SHORT = 16

# Finite: with -inf, a window of padding alone makes the backward pass NaN.
MASKED = -1e30

# (scores [b .. n i j], axis, effective window, mask or None) -> weights
Weigh = Callable[[Array, int, int, Array | None], Array]

# What every form along axes is traced for, besides its arrays.
STATIC = ('window', 'shift', 'impl', 'scaled', 'absolute', 'rotation')


def axial_attention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    weigh: Weigh,
    *,
    window: int | None,
    shift: int,
    impl: str,
    rotation: rotary_lib.Rotation | None,
) -> Float[Array, 'b h w n d']:
  """The width pass, whose output is the value of the height pass.

      V'[i, j] = sum_J A_w[i, j, J] V[i, J]
      O[i, j]  = sum_I A_h[j, i, I] V'[I, j]

  Args:
    query: Queries.
    key: Keys.
    value: Values.
    weigh: The attention form: turns scores `q k^T` into weights.
    window: Nominal window; None attends along the whole axis.
    shift: Nominal shift.
    impl: 'banded' attends each whole axis under a block-diagonal mask;
      'cyclic' pads, rolls, cuts into windows, attends and undoes it; 'blocked'
      pads and cuts along the axis of each pass, by products and sums, and rolls
      an axis before both where it needs no padding. They agree to
      rounding for every extent, window and shift. 'auto' takes 'banded' on
      CPU and 'blocked' elsewhere.
    rotation: What turns queries and keys; None for nothing.

  Returns:
    The mixed values, in `value.dtype`.

  Raises:
    ValueError: If `impl` is unknown.
  """
  if impl not in IMPLEMENTATIONS:
    raise ValueError(f'attention {impl=} is not one of {IMPLEMENTATIONS}.')
  if impl == 'auto':
    impl = 'banded' if platform() == 'cpu' else 'blocked'
  batch, height, width = value.shape[:3]
  rows = window_lib.effective(height, window, shift)
  columns = window_lib.effective(width, window, shift)
  sizes = columns[0], rows[0]

  # Scores of blocks can turn what they read: large maps are better not written
  # again.
  turned = impl == 'blocked' and is_large(query) and max(sizes) <= _SHORT
  if rotation is not None and not turned:
    query, key = (rotary_lib.rotate(x, rotation=rotation) for x in (query, key))
    rotation = None
  if impl == 'blocked':
    windows = columns, rows
    return _blocked_passes(query, key, value, weigh, rotation, windows)
  if impl == 'banded':
    masks = window_lib.band_mask(width, *columns), window_lib.band_mask(
        height, *rows
    )
    return _two_passes(query, key, value, weigh, sizes, masks)

  windows, shifts = (rows[0], columns[0]), (rows[1], columns[1])
  query, key, value = (
      window_lib.partition(x, windows, shifts) for x in (query, key, value)
  )
  # One mask per window of an image, row-major like the windows.
  mask_h = window_lib.cyclic_mask(height, *rows)
  mask_w = window_lib.cyclic_mask(width, *columns)
  down, across = len(mask_h), len(mask_w)
  masks = tuple(
      jnp.broadcast_to(mask[None], (batch, *mask.shape)).reshape(
          -1, 1, 1, *mask.shape[1:]
      )
      for mask in (np.tile(mask_w, (down, 1, 1)), mask_h.repeat(across, axis=0))
  )
  out = _two_passes(query, key, value, weigh, sizes, masks)
  return window_lib.merge(out, (height, width), shifts)


def _two_passes(query, key, value, weigh, sizes, masks):
  """Both passes, over maps or windows; pairs are (width, height)."""
  dtype = value.dtype
  wide = wide_dtype(dtype)
  for axis in (WIDTH, HEIGHT):
    # Lines to the front by hand: products of maps as they lie took XLA's CPU
    # backend twice the time, forward and backward.
    q, k, v = (_lines(x, axis) for x in (query, key, value))
    scores = jnp.einsum('blnid,blnjd->blnij', q, k, preferred_element_type=wide)
    mask = masks[axis]
    if mask is not None and mask.ndim == 2:
      mask = mask[None, None, None]
    weights = weigh(scores, axis, sizes[axis], mask).astype(dtype)
    out = jnp.einsum(
        'blnij,blnjd->blnid', weights, v, preferred_element_type=wide
    )
    value = _lines(out.astype(dtype), axis, back=True)
  return value


def _lines(x, axis, *, back=False):
  """Rows (axis 0) or columns with their heads, `[b l n i d]`; or back."""
  order = (0, 1, 3, 2, 4) if axis == WIDTH else (0, 2, 3, 1, 4)
  return x.transpose(np.argsort(order) if back else order)


def _blocked_passes(query, key, value, weigh, rotation, windows):
  """Both passes; `windows` are (window, shift) of columns, then of rows."""
  extents = value.shape[1:3]
  # An axis that needs no padding is rolled once, for both passes.
  rolled = [
      0 if extent % window else shift
      for extent, (window, shift) in zip(extents[::-1], windows, strict=True)
  ]
  query, key, value = (
      jnp.roll(x, np.negative(rolled), (2, 1)) for x in (query, key, value)
  )
  for axis, (window, shift) in enumerate(windows):
    left = shift - rolled[axis]
    q, k, v = (
        blocked.blocks(x, axis, window, left) for x in (query, key, value)
    )
    mask = blocked.mask(axis, extents, window, shift)
    # Of tokens that a roll brought together the angle is another: these are
    # masked.
    turn = rotation and rotary_lib.between(rotation, axis, window)
    weights = weigh(blocked.scores(q, k, turn), axis, window, mask)
    value = blocked.mix(weights, v)
    value = blocked.unblock(value, axis, extents, left)
  return jnp.roll(value, rolled, (2, 1))


def scaled_query(
    query: Float[Array, 'b h w n d'], scaled: bool
) -> tuple[Float[Array, 'b h w n d'], float]:
  """Divides scores by `sqrt(d)`, early if that costs no precision.

  Scores are many more than queries, but 16-bit queries would be rounded again.

  Args:
    query: Queries.
    scaled: Whether there is a factor at all.

  Returns:
    The queries, and what scores are still to be multiplied by.
  """
  scale = query.shape[-1] ** -0.5 if scaled else 1.0
  if scaled and query.dtype.itemsize >= 4:
    return query * scale, 1.0
  return query, scale


def biased(
    scores: Float[Array, '*b n i j'],
    slopes: Float[Array, ' n'] | None,
    absolute: bool,
) -> Float[Array, '*b n i j']:
  """Adds the ALiBi bias `slope_n (i - j)`, or `slope_n |i - j|`."""
  if slopes is None:
    return scores
  distance = offsets(scores.shape[-1])
  if absolute:
    distance = np.abs(distance)
  return scores + head_table(slopes, distance, scores)


def offsets(length: int) -> np.ndarray:
  """Signed distances `i - j` of query `i` and key `j`, `[i, j]`."""
  position = np.arange(length)
  return position[:, None] - position[None, :]


def decay_table(
    log_decay: Float[Array, ' n'], distance: np.ndarray, scores: Array
) -> Float[Array, '*b n i j']:
  """`gamma_n ** distance[i, j]`, shaped and typed to meet `scores`."""
  return jnp.exp(head_table(log_decay, distance, scores))


def head_table(
    per_head: Float[Array, ' n'], distance: np.ndarray, scores: Array
) -> Float[Array, '*b n i j']:
  """`per_head[n] * distance[i, j]`, shaped and typed to meet `scores`."""
  per_head = per_head.astype(scores.dtype)[:, None, None]
  distance = in_one_launch(jnp.asarray(distance, scores.dtype), 'forward')
  table = per_head * distance[None]
  return jnp.expand_dims(table, range(scores.ndim - 3))
