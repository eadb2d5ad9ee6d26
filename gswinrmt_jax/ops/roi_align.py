"""RoIAlign (He et al., 2017), and resampling of masks, as two matrices.

The samples of a box are a product grid, and bilinear interpolation is a
product, too. So pooling is one matrix per axis,

    y[p, q, c] = sum_{i, j} R[p, i] C[q, j] x[i, j, c]

whose gradient with respect to the map needs no scatter.
"""

from collections.abc import Sequence

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num, Shaped
import numpy as np

from gswinrmt_jax.ops import boxes as boxes_lib
from gswinrmt_jax.ops import padding

# The mean of so many pixels in each direction, the size of an ImageNet image
# divided by the stride of the second level and halved: a box of this size
# belongs to level 0 if it is smaller, to level 1 from twice as much, and so on.
_FINEST_SIZE = 56
# Boxes pooled at once. Their rows times the columns of the map are in memory:
# 300 MB for a map of 200 x 336 positions, 7 bins and 256 channels.
_AT_ONCE = 128


def _matrix(start, end, limit, *, bins, cells):
  """Returns the mean of the samples of each bin, `[bins, cells]`.

  A bin has `ceil(size / bins)` samples, the middles of equal parts. Positions
  count from the middle of the first cell. A sample up to one cell beyond the
  first or last middle is moved there, one still farther out is 0.

  Args:
    start: Where the box starts along the axis, in cells.
    end: Where it ends.
    limit: Number of valid cells.
    bins: Number of bins.
    cells: Number of cells.
  """
  size = end - start
  samples = jnp.ceil(size / bins)
  first = jnp.arange(bins, dtype=size.dtype)
  cell = jnp.arange(cells, dtype=size.dtype)

  def add(index, total):
    at = start - 0.5 + size / bins * (first + (index + 0.5) / samples)
    inside = (at >= -1) & (at <= limit)
    at = at.clip(0, limit - 1)
    hat = (1 - abs(at[:, None] - cell[None])).clip(0)
    return total + jnp.where(inside[:, None], hat, 0)

  total = jnp.zeros((bins, cells), size.dtype)
  total = lax.fori_loop(0, samples.astype(jnp.int32), add, total)
  return total / samples.clip(1)


def roi_align(
    x: Float[Array, 'h w c'],
    boxes: Float[Array, 'r 4'],
    extents: Num[Array, ' 2'] | None = None,
    *,
    bins: int,
) -> Float[Array, 'r {bins} {bins} c']:
  """Averages the map over `bins x bins` equal parts of each box.

  This is RoIAlign with half-pixel alignment (`aligned=True`), and adaptive
  sampling (`sampling_ratio=0`): a bin has as many samples along an axis as it
  has cells, rounded up. Empty boxes give 0. Boxes have no gradient.

  Args:
    x: The map.
    boxes: Boxes in cells of the map, that is, pixels divided by the stride.
    extents: Valid rows and columns of the map; None for all.
    bins: Bins along each axis.
  """
  values = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  boxes = lax.stop_gradient(boxes).astype(values.dtype)
  size = x.shape[:2] if extents is None else extents
  limits = [jnp.asarray(each, values.dtype) for each in (size[0], size[1])]

  def pool(box):
    columns, rows = (
        _matrix(box[k], box[k + 2], limits[1 - k], bins=bins, cells=cells)
        for k, cells in enumerate((x.shape[1], x.shape[0]))
    )
    return jnp.einsum(
        'pi,ijc,qj->pqc', rows, values, columns, precision='highest'
    )

  return lax.map(pool, boxes, batch_size=_AT_ONCE).astype(x.dtype)


def level_of(boxes: Float[Array, '*b 4'], levels: int) -> Int[Array, '*b']:
  """Returns the pyramid level of each box (Lin et al., 2017, eq. 1).

  floor(log2(sqrt(area) / 56)), within 0 ... levels - 1
  """
  size = jnp.sqrt(boxes_lib.area(boxes).clip(0)) / _FINEST_SIZE
  level = jnp.floor(jnp.log2(size + 1e-6))
  return level.clip(0, levels - 1).astype(jnp.int32)


def pool_levels(
    maps: Sequence[Float[Array, 'b _ _ c']],
    boxes: Float[Array, 'b r 4'],
    extents: Sequence[padding.Extents],
    *,
    strides: Sequence[int],
    bins: int,
) -> Float[Array, 'b r {bins} {bins} c']:
  """Pools each box from the pyramid level of its size.

  Args:
    maps: The levels, from fine to coarse.
    boxes: Boxes of each image, in pixels.
    extents: Valid rows and columns of each level.
    strides: Stride of each level.
    bins: Bins along each axis.
  """
  levels, total = level_of(boxes, len(maps)), 0
  for level, stride in enumerate(strides):
    # A box of another level is empty, which gives 0 and takes no samples.
    here = jnp.where((levels == level)[..., None], boxes / stride, 0)
    pool = jax.vmap(lambda *found: roi_align(*found, bins=bins))
    total += pool(maps[level], here, extents[level])
  return total


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

  def resample(bitmap, frame, box):
    size = (frame[2:] - frame[:2]).clip(1e-6)
    cells = jnp.array(bitmap.shape[::-1], box.dtype) / size
    box = (box - jnp.tile(frame[:2], 2)) * jnp.tile(cells, 2)
    x = bitmap.astype(box.dtype)[..., None]
    return roi_align(x, box[None], bins=bins)[0, ..., 0]

  soft = jax.vmap(resample)(bitmaps, frames, boxes)
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
