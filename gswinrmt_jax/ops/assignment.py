"""Which object each box has to find: assignment by IoU, and sampling."""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from gswinrmt_jax.ops import boxes as boxes_lib

IGNORED, BACKGROUND = -1, 0  # object i is i + 1

# IoUs that differ by less are equal. If an anchor contains an object along an
# axis, or the reverse, shifted anchors have the same IoU up to rounding, which
# would otherwise decide differently on each device.
_TIE = 1e-6


class Truth(NamedTuple):
  """The objects of each image, in a fixed number of rows.

  Attributes:
    boxes: Boxes in pixels of the batch; those of unused rows may be anything.
    labels: Class of each object, from 0.
    valid: Which rows are used.
    bitmaps: What each object covers of its frame, 0 or 1; None without masks.
    frames: The box that each bitmap fills, in pixels of the batch, such as the
      whole image. None if it is the object's box.
  """

  boxes: Float[Array, '*b g 4']
  labels: Int[Array, '*b g']
  valid: Bool[Array, '*b g']
  bitmaps: Shaped[Array, '*b g m n'] | None = None
  frames: Float[Array, '*b g 4'] | None = None


class Rule(NamedTuple):
  """Thresholds of `assign`.

  Attributes:
    positive: Least IoU of a box with the object that it is assigned to.
    negative: A box whose best IoU is below is background; between both, it is
      ignored.
    low_quality: Least IoU at which an object takes its best boxes, although
      they may have less than `positive`; None if it never does.
  """

  positive: float
  negative: float
  low_quality: float | None


def assign(
    boxes: Float[Array, 'n 4'],
    valid: Bool[Array, ' n'],
    truth: Truth,
    rule: Rule,
) -> Int[Array, ' n']:
  """Assigns an object of one image to each box (mmdetection's MaxIoUAssigner).

  A box is assigned to the object of its largest IoU, the first of equals. Then
  each object, in order, takes all boxes that have its largest IoU, even from
  others. Objects that overlap no box, such as those of unused rows, take none;
  in mmdetection 2.11, with `low_quality` of 0, they take all boxes.

  Args:
    boxes: Anchors or proposals.
    valid: Which of them take part; others are ignored.
    truth: The objects.
    rule: The thresholds.

  Returns:
    `IGNORED`, `BACKGROUND`, or 1 + the row of the object.
  """

  def visit(row, state):
    best, closest, taken = state
    iou = boxes_lib.iou(boxes, truth.boxes[row].astype(boxes.dtype)[None])
    iou = jnp.where(valid & truth.valid[row], iou, 0)
    closest = jnp.where(iou > best, row + 1, closest)
    if rule.low_quality is not None:
      most = iou.max()
      tie = jnp.minimum(_TIE, most / 1000)  # IoUs of a sliver are below _TIE
      takes = (iou > most - tie) & (iou > 0) & (most >= rule.low_quality)
      taken = jnp.where(takes, row + 1, taken)
    return jnp.maximum(best, iou), closest, taken

  none = jnp.zeros(len(boxes), jnp.int32)
  state = jnp.zeros(len(boxes), boxes.dtype), none, none
  # Most images have far fewer objects than there are rows.
  last = jnp.where(truth.valid, jnp.arange(1, len(truth.valid) + 1), 0).max()
  best, closest, taken = lax.fori_loop(0, last, visit, state)
  assigned = jnp.where(best < rule.negative, BACKGROUND, IGNORED)
  assigned = jnp.where(best >= rule.positive, closest, assigned)
  assigned = jnp.where(taken > 0, taken, assigned)
  return jnp.where(valid, assigned, IGNORED).astype(jnp.int32)


def sample(
    assigned: Int[Array, ' n'],
    key: Key[Array, ''] | None,
    *,
    count: int,
    positives: int,
) -> tuple[Int[Array, ' s'], Bool[Array, ' s']]:
  """Draws boxes to train on: first those with an object, then background.

  Args:
    assigned: What `assign` returns.
    key: Random key; with None, the first boxes are taken.
    count: Number of boxes, at most `n`.
    positives: How many may have an object. Background takes the other places.

  Returns:
    Indices of the boxes, and which of them are used: if there are too few
    boxes, places at the end are not.
  """
  n = len(assigned)
  if key is None:
    order = jnp.linspace(1, 0, n, endpoint=False, dtype=jnp.float32)
  else:
    order = jax.random.uniform(key, (n,), jnp.float32)
  positive = jnp.where(assigned > 0, order, -1)
  places = min(positives, n)
  drawn, index = lax.top_k(positive, places)
  taken = jnp.zeros(n, bool).at[index].set(drawn >= 0)
  priority = jnp.where(taken, 2 + positive, -1)
  priority = jnp.where(assigned == BACKGROUND, order, priority)
  drawn, index = lax.top_k(priority, min(count, n))
  return index, drawn >= 0
