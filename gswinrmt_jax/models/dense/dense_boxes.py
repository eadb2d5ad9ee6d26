"""What the heads of detectors share: settings, anchors' boxes, detections."""

from collections.abc import Sequence
import functools
from typing import NamedTuple

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gswinrmt_jax.ops import assignment, nms, padding
from gswinrmt_jax.ops import boxes as boxes_lib
from gswinrmt_jax.ops.anchors import AnchorGrid

STDS = (1.0, 1.0, 1.0, 1.0)  # of the deltas of anchors


_OVERLAP = 0.5  # IoU above which the worse of two detections is dropped


class DetectionHead(nn.Module):
  """Settings of all heads, and the selection of detections at their end.

  A head is called with the four maps of a backbone, from fine to coarse;
  `sizes`, height and width of each image in pixels, to which boxes are clipped;
  `extents`, the valid rows and columns in pixels, None for the whole canvas;
  `train`, whether BN uses the batch's statistics; and `truth`, the objects of
  each image. It returns outputs to train on or, without truth, detections.

  Attributes:
    num_classes: Number of classes.
    channels: Channels of the pyramid.
    strides: Strides of the four maps of the backbone.
    candidates: Anchors of a level that compete in detection.
    detections: Largest number of detections of an image.
    least_score: Least probability of a detection.
    dtype: Computation dtype.
  """

  num_classes: int
  channels: int = 256
  strides: tuple[int, ...] = (4, 8, 16, 32)
  candidates: int = 1000
  detections: int = 100
  least_score: float = 0.05
  dtype: Dtype = jnp.float32

  def select(
      self, boxes: Float[Array, 'b n _ 4'], scores: Float[Array, 'b n k']
  ) -> nms.Detections:
    """Returns the best detections of each image, see `nms.select`."""
    select = functools.partial(
        nms.select,
        least_score=self.least_score,
        threshold=_OVERLAP,
        limit=self.detections,
    )
    return jax.vmap(select)(boxes, scores)


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

  def with_targets(
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


def candidates(
    found: DenseBoxes, grid: AnchorGrid, sizes: Int[Array, 'b 2'], limit: int
) -> tuple[Float[Array, 'b l n 4'], Float[Array, 'b l n k']]:
  """Returns the best boxes of each level, best first, and their probabilities.

  Boxes are clipped to the image. Those of rows that do not exist, as a level
  may have fewer anchors than `limit`, and those that become empty have
  probabilities of 0. mmdetection 2.11 keeps empty boxes, which suppression
  never removes; later versions drop them.

  Args:
    found: What a head predicts.
    grid: Its anchors.
    sizes: Height and width of each image, in pixels.
    limit: Largest number of anchors to return of a level.
  """

  def image(logits, deltas, valid, size):
    scores = jax.nn.sigmoid(logits) * valid[:, None]
    best, exist = grid.best(scores.max(-1), limit)
    boxes = boxes_lib.decode(found.anchors[best], deltas[best], STDS)
    boxes = boxes_lib.clip(boxes, size[None, None])
    exist &= ~boxes_lib.is_empty(boxes)
    return boxes, scores[best] * exist[..., None]

  return jax.vmap(image)(found.logits, found.deltas, found.valid, sizes)
