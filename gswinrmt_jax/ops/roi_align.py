"""RoIAlign (He et al., 2017), and resampling of masks, as two matrices.

The samples of a box are a product grid, and bilinear interpolation is a
product, too. So pooling is one matrix per axis,

    y[p, q, c] = sum_{i, j} R[p, i] C[q, j] x[i, j, c]

whose gradient with respect to the map needs no scatter.
"""

from collections.abc import Sequence
import functools

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, Shaped
import numpy as np

from gswinrmt_jax.ops import boxes as boxes_lib
from gswinrmt_jax.ops import padding
from gswinrmt_jax.ops.layers import wide_dtype

# A box belongs to the finest level if its side is below twice this many pixels,
# to the next one below four times, and so on.
_FINEST_SIZE = 56
# Boxes of an image that are pooled at once. Their rows times the columns of the
# map are in memory: 300 MB for each image of the batch, for 200 x 336
# positions, 7 bins and 256 channels.
_AT_ONCE = 128


def _matrices(
    boxes: Float[Array, 'n 4'],
    limits: Num[Array, 'n 2'],
    *,
    bins: int,
    size: tuple[int, int],
) -> tuple[Float[Array, 'n {bins} _'], Float[Array, 'n {bins} _']]:
  """Returns the matrices of rows and of columns that pool each box.

  Args:
    boxes: Boxes in cells. They have no gradient.
    limits: Valid rows and columns of the map of each box.
    bins: Bins along each axis.
    size: Rows and columns of the largest map.
  """
  boxes, limits = lax.stop_gradient((boxes, limits.astype(boxes.dtype)))
  x0, y0, x1, y1 = boxes.T
  return (
      _axis_matrix(y0, y1, limits[:, 0], bins, size[0]),
      _axis_matrix(x0, x1, limits[:, 1], bins, size[1]),
  )


def _axis_matrix(start, end, limit, bins, cells):
  """Returns the matrix of one axis, `[n, bins, cells]`.

      R[p, i] = 1/S sum_s max(0, 1 - |x(p, s) - i|),  S = ceil(length / bins)
      x(p, s) = start + (p + (s + 1/2) / S) length / bins - 1/2

  The samples `x` are the middles of equal parts of a bin; position i is the
  middle of cell i. A sample up to one cell beyond the first or last middle is
  moved there; one still farther out is 0.
  """
  start, limit, length = (x[:, None] for x in (start, limit, end - start))
  samples = jnp.ceil(length / bins)
  bin_index = jnp.arange(bins, dtype=start.dtype)[None]
  cell = jnp.arange(cells, dtype=start.dtype)[None, None]

  def add(index, total):
    at = start + (bin_index + (index + 0.5) / samples) * length / bins - 0.5
    counts = (index < samples) & (at >= -1) & (at <= limit)
    at = jnp.clip(at, 0, limit - 1)
    hat = (1 - abs(at[..., None] - cell)).clip(0)
    return total + jnp.where(counts[..., None], hat, 0)

  # The boxes of a damaged image, NaN, do not end the samples of the others.
  finite = jnp.isfinite(samples)
  most = samples.max(initial=0, where=finite).astype(jnp.int32)
  total = jnp.zeros((start.shape[0], bins, cells), start.dtype)
  total = lax.fori_loop(0, most, add, total)
  return total / samples.clip(1)[..., None]


def _pool(rows, x, columns):
  """Returns `[... p q c]`, from rows `[... p i]`, map and columns `[... q j]`.

  With the columns repeated for each p, both products are matmuls of arrays as
  they lie in memory. Without, the larger ones are transposed: the gradient of
  128 boxes on each of 4 maps of 64 x 64 positions takes 0.37 s instead of 0.23
  (one CPU core; not measured on other devices).
  """
  partial = jnp.einsum('...pi,...ijc->...pjc', rows, x, precision='highest')
  shape = (*rows.shape[:-1], *columns.shape[-2:])
  columns = jnp.broadcast_to(columns[..., None, :, :], shape)
  return jnp.einsum(
      '...pqj,...pjc->...pqc', columns, partial, precision='highest'
  )


def level_of(boxes: Float[Array, '*b 4'], levels: int) -> Int[Array, '*b']:
  """Returns the pyramid level of each box (Lin et al., 2017, eq. 1).

      floor(log2(sqrt(area) / 56))

  within 0 and `levels - 1`.
  """
  size = jnp.sqrt(boxes_lib.area(boxes).clip(0)) / _FINEST_SIZE
  level = jnp.floor(jnp.log2(size + 1e-6))
  return level.clip(0, levels - 1).astype(jnp.int32)


def roi_align(
    maps: Sequence[Float[Array, 'b _ _ c']],
    boxes: Float[Array, 'b r 4'],
    extents: padding.Extents,
    *,
    strides: Sequence[int],
    bins: int,
) -> Float[Array, 'b r {bins} {bins} c']:
  """Averages over `bins x bins` parts of each box, on the level of its size.

  This is RoIAlign with half-pixel alignment (`aligned=True`), and adaptive
  sampling (`sampling_ratio=0`): a bin has as many samples along an axis as it
  has cells, rounded up. Empty boxes give 0. Boxes have no gradient.

  Args:
    maps: The levels, from fine to coarse.
    boxes: Boxes of each image, in pixels.
    extents: Valid rows and columns of the images, in pixels; None for all.
    strides: Stride of each level.
    bins: Bins along each axis.
  """
  batch, count = boxes.shape[:2]
  dtype = wide_dtype(maps[0].dtype)
  levels = level_of(boxes, len(maps))
  stride = jnp.array(strides)[levels][..., None]
  if extents is None:  # All of the finest map, and so of the others.
    extents = strides[0] * jnp.array([maps[0].shape[1:3]])
  limits = -(-extents[:, None] // stride)
  cells = boxes.astype(dtype) / stride.astype(dtype)
  matrices = _matrices(
      cells.reshape(-1, 4),
      limits.reshape(-1, 2),
      bins=bins,
      size=maps[0].shape[1:3],
  )
  rows, columns = (m.reshape(batch, count, *m.shape[1:]) for m in matrices)

  def pool(maps, level, rows, columns):
    """Pools one box of one image; other levels than its own are 0."""
    total = 0
    for index, x in enumerate(maps):
      height, width = x.shape[:2]
      own_rows = jnp.where(level == index, rows[..., :height], 0)
      total += _pool(own_rows, x.astype(dtype), columns[..., :width])
    return total

  def pool_image(maps, *boxes):
    one = functools.partial(pool, maps)
    if count > _AT_ONCE:
      return lax.map(lambda box: one(*box), boxes, batch_size=_AT_ONCE)
    return jax.vmap(one)(*boxes)

  pooled = jax.vmap(pool_image)(list(maps), levels, rows, columns)
  return pooled.astype(maps[0].dtype)


def mask_targets(
    bitmaps: Shaped[Array, 'r m n'],
    frames: Float[Array, 'r 4'],
    boxes: Float[Array, 'r 4'],
    *,
    bins: int,
) -> Float[Array, 'r {bins} {bins}']:
  """Returns what an object covers of each box: 1 or 0 per cell.

  It is 1 where RoIAlign of the bitmap gives at least 1/2.

  Args:
    bitmaps: What the object of each box covers of its frame, 0 or 1.
    frames: The box that each bitmap fills, in pixels. If it is the whole image
      and a cell a pixel, targets are exact. If it is the object's own box, a
      bitmap of 112 x 112 cells changes 0.3 % of the targets.
    boxes: Boxes in pixels.
    bins: Cells along each axis.
  """
  size = (frames[:, 2:] - frames[:, :2]).clip(1e-6)
  cells = jnp.array([bitmaps.shape[:0:-1]], boxes.dtype) / size
  origin = jnp.tile(frames[:, :2], (1, 2))
  rows, columns = _matrices(
      (boxes - origin) * jnp.tile(cells, (1, 2)),
      jnp.broadcast_to(jnp.array([bitmaps.shape[1:]]), (len(boxes), 2)),
      bins=bins,
      size=bitmaps.shape[1:],
  )
  soft = _pool(rows, bitmaps.astype(boxes.dtype)[..., None], columns)[..., 0]
  return (soft >= 0.5).astype(boxes.dtype)


def paste(
    masks: np.ndarray, boxes: np.ndarray, size: tuple[int, int]
) -> np.ndarray:
  """Resizes masks to their boxes in an image, bilinearly, 0 outside.

  It runs in NumPy, one image at a time: images have any size.

  Args:
    masks: Probabilities in the cells of each box, `[d, m, n]`.
    boxes: Boxes in pixels of the image, `[d, 4]`.
    size: Height and width of the image.

  Returns:
    Probabilities at the middle of each pixel, `[d, height, width]`.
  """

  def matrix(pixels, cells, start, end):
    middle = np.arange(pixels)[None] + 0.5
    extent = np.maximum(end - start, 1e-6)[:, None]
    at = (middle - start[:, None]) / extent * cells - 0.5  # d pixels
    return (1 - abs(at[:, :, None] - np.arange(cells))).clip(0)

  rows = matrix(size[0], masks.shape[1], boxes[:, 1], boxes[:, 3])
  columns = matrix(size[1], masks.shape[2], boxes[:, 0], boxes[:, 2])
  return rows @ masks @ columns.swapaxes(1, 2)
