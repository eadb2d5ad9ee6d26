"""Boxes predicted at every position of a pyramid: what RetinaNet and RPN share.

The head of a detector is called with the four maps of a backbone, `sizes`
(height and width of each image in pixels, to which boxes are clipped), and
`extents` (which part of the canvas is valid; None for all of it).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gswinrmt_jax.ops import assignment, padding
from gswinrmt_jax.ops import boxes as boxes_lib
from gswinrmt_jax.ops.anchors import AnchorGrid

STDS = (1.0, 1.0, 1.0, 1.0)  # of the deltas of anchors


class DenseBoxes(NamedTuple):
  """Predictions for all anchors of `AnchorGrid`, in their order.

  Attributes:
    logits: Logits of each class, for a sigmoid; in at least float32.
    deltas: From each anchor to its box, see `boxes.encode`.
    anchors: The anchors, in pixels.
    valid: Which anchors take part.
    assigned: The object that each anchor is trained to find, see
      `assignment.assign`; None without truth.
  """

  logits: Float[Array, 'b a k']
  deltas: Float[Array, 'b a 4']
  anchors: Float[Array, 'a 4']
  valid: Bool[Array, 'b a']
  assigned: Int[Array, 'b a'] | None = None

  def assign(
      self, truth: assignment.Truth, rule: assignment.Rule
  ) -> 'DenseBoxes':
    """Returns the predictions with the objects that anchors have to find."""

    def assign(valid, truth):
      return assignment.assign(self.anchors, valid, truth, rule)

    return self._replace(assigned=jax.vmap(assign)(self.valid, truth))


def dense_boxes(
    levels: Sequence[tuple[Array, Array]],
    grid: AnchorGrid,
    extents: padding.Extents,
) -> DenseBoxes:
  """Joins the maps of all levels, and pairs them with their anchors.

  Args:
    levels: Maps of logits and of deltas of each level. Their channels are those
      of the first anchor, then of the second, and so on.
    grid: The anchors.
    extents: Valid rows and columns of the images, in pixels.
  """

  def joined(maps):
    maps = [x.reshape(x.shape[0], -1, x.shape[-1] // grid.shapes) for x in maps]
    return jnp.concatenate(maps, 1)

  logits, deltas = map(joined, zip(*levels, strict=True))
  if extents is None:
    valid = jnp.ones(logits.shape[:2], bool)
  else:
    valid = grid.valid(extents)
  return DenseBoxes(
      logits, deltas, jnp.asarray(grid.boxes(), deltas.dtype), valid
  )


def decode(
    anchors: Float[Array, '*n 4'],
    deltas: Float[Array, '*n 4'],
    size: Int[Array, ' 2'],
) -> tuple[Float[Array, '*n 4'], Bool[Array, '*n']]:
  """Returns boxes clipped to the image, and which of them are not empty.

  mmdetection 2.11 keeps those that become empty, which suppression never
  removes; later versions drop them.
  """
  boxes = boxes_lib.decode(anchors, deltas, STDS)
  boxes = boxes_lib.clip(boxes, jnp.expand_dims(size, range(boxes.ndim - 1)))
  return boxes, ~boxes_lib.is_empty(boxes)
