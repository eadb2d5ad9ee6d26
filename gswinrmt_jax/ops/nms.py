"""Non-maximum suppression: of boxes that overlap, the best ones.

Greedy suppression visits boxes from the best score on, and keeps a box unless
its IoU with one that was kept is above a threshold. Both functions have static
shapes and equal it exactly. Neither is differentiable.
"""

from typing import NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gswinrmt_jax.ops import boxes as boxes_lib


class Detections(NamedTuple):
  """What was found, best first, in a fixed number of rows.

  Attributes:
    boxes: Boxes in pixels of the batch.
    scores: Probabilities; those of unused rows, at the end, are 0.
    labels: Classes, from 0.
    masks: Probability of the object in each cell of its box; None without.
  """

  boxes: Float[Array, '*b d 4']
  scores: Float[Array, '*b d']
  labels: Int[Array, '*b d']
  masks: Float[Array, '*b d m m'] | None = None

  def arrays(self) -> dict[str, Array]:
    """Returns the arrays by name, without masks if there are none."""
    return {k: v for k, v in self._asdict().items() if v is not None}


def suppress(
    boxes: Float[Array, 'n 4'], valid: Bool[Array, ' n'], *, threshold: float
) -> Bool[Array, ' n']:
  """Returns which boxes greedy suppression keeps.

  The kept boxes are the fixed point of

      keep_j = valid_j and not any_{i < j} (keep_i and iou_ij > threshold)

  which is unique, since each box depends only on better ones. Iterated from all
  boxes, it is reached after as many rounds as the longest chain of boxes that
  suppress one another, about five in practice.

  Args:
    boxes: Boxes, from the best score to the worst.
    valid: Which boxes take part.
    threshold: IoU above which a box is suppressed.
  """
  overlap = boxes_lib.iou(boxes[:, None], boxes[None]) > threshold
  suppresses = jnp.triu(overlap, k=1)

  def update(state):
    keep, _ = state
    return valid & ~(keep[:, None] & suppresses).any(0), keep

  start = valid & ~suppresses.any(0), valid
  keep, _ = lax.while_loop(lambda s: (s[0] != s[1]).any(), update, start)
  return keep


def select(
    boxes: Float[Array, 'n _ 4'],
    scores: Float[Array, 'n k'],
    *,
    least_score: float,
    threshold: float,
    limit: int,
) -> Detections:
  """Returns the best detections after greedy suppression within each class.

  `limit` times, takes the best of all pairs of box and class, and drops the
  boxes of this class that overlap it.

  Args:
    boxes: Boxes of each class, or `[n, 1, 4]` if all classes share them.
    scores: Probability of each class; one of at most `least_score` is dropped.
      One that is NaN is a detection, so that damage is seen.
    least_score: See above; at least 0.
    threshold: IoU above which a box is suppressed.
    limit: Number of detections.
  """
  n, classes = scores.shape

  def take(scores, _):
    row, label = jnp.divmod(scores.argmax(), classes)
    of_class = boxes[:, jnp.minimum(label, boxes.shape[1] - 1)]
    box, score = of_class[row], scores[row, label]
    dropped = boxes_lib.iou(of_class, box[None]) > threshold
    dropped |= jnp.arange(n) == row
    remaining = jnp.where(dropped, 0, scores[:, label])
    found = jnp.where(score > 0, box, 0), score, label.astype(jnp.int32)
    return scores.at[:, label].set(remaining), found

  scores = jnp.where(scores <= least_score, 0, scores)
  _, found = lax.scan(take, scores, length=limit)
  return Detections(*found)
