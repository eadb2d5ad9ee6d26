"""Anchors: the boxes that a detector regresses from, at each map position."""

from collections.abc import Sequence
import itertools
from typing import NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import numpy as np

from gswinrmt_jax.ops import padding

RATIOS = (0.5, 1.0, 2.0)  # height / width


class AnchorGrid(NamedTuple):
  """The anchors of a pyramid: levels, in each positions, at each shapes.

  As in mmdetection from version 2.0, position (i, j) of a level with stride s
  is the centre `(x, y) = (j s, i s)` of its anchors, without half a stride. For
  ratio r and scale f, their width is `s f / sqrt(r)`, their height
  `s f sqrt(r)`. In the order of anchors, levels vary slowest, then rows,
  columns, ratios and scales.

  Attributes:
    sizes: Rows and columns of each level.
    strides: Stride of each level.
    scales: Scales of the anchors.
  """

  sizes: Sequence[tuple[int, int]]
  strides: Sequence[int]
  scales: Sequence[float]

  @property
  def shapes(self) -> int:
    """Anchors of a position."""
    return len(RATIOS) * len(self.scales)

  def boxes(self) -> np.ndarray:
    """Returns all anchors, `[a, 4]`, in pixels."""
    shapes = itertools.product(np.sqrt(RATIOS), self.scales)
    half = np.array([(f / root, f * root) for root, f in shapes]) / 2
    unit = np.concatenate([-half, half], -1)
    levels = []
    for (rows, columns), stride in zip(self.sizes, self.strides, strict=True):
      y, x = np.mgrid[:rows, :columns]
      centres = np.stack([x, y, x, y], -1)[:, :, None]
      levels.append(stride * (centres + unit).reshape(-1, 4))
    return np.concatenate(levels)

  def valid(self, extents: Int[Array, 'b 2']) -> Bool[Array, 'b a']:
    """Returns which anchors belong to valid positions of each image.

    Args:
      extents: Valid rows and columns of the images, in pixels.
    """
    levels = []
    for size, stride in zip(self.sizes, self.strides, strict=True):
      valid = padding.valid(padding.strided(extents, stride), *size)
      levels.append(valid.reshape(len(valid), -1).repeat(self.shapes, axis=1))
    return jnp.concatenate(levels, 1)

  def best(
      self, scores: Float[Array, ' a'], limit: int
  ) -> tuple[Int[Array, 'l n'], Bool[Array, 'l n']]:
    """Returns the anchors of each level with the largest scores, best first.

    Args:
      scores: A score of each anchor.
      limit: Largest number of anchors to return of a level.

    Returns:
      Indices of the anchors, and which of them exist: a level may have fewer
      than the largest one.
    """
    counts = [rows * columns * self.shapes for rows, columns in self.sizes]
    limit, found, start = min(limit, max(counts)), [], 0
    for count in counts:
      level = scores[start : start + count]
      _, index = lax.top_k(level, min(limit, count))
      found.append(jnp.pad(start + index, (0, limit - len(index))))
      start += count
    exist = np.arange(limit) < np.array(counts)[:, None]
    return jnp.stack(found), jnp.asarray(exist)


def inside(
    anchors: Float[Array, 'a 4'], sizes: Int[Array, 'b 2']
) -> Bool[Array, 'b a']:
  """Returns which anchors lie inside each image, `sizes` high and wide."""
  low = (anchors[None, :, :2] >= 0).all(-1)
  return low & (anchors[None, :, 2:] < sizes[:, None, ::-1]).all(-1)
