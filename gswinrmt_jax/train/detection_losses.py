"""Losses of detectors.

Sums over the boxes of the whole batch are divided by counts of the whole batch,
so that the loss does not depend on the number of devices. mmdetection divides
on each GPU, which has 2 images.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import optax

from gswinrmt_jax.models.dense.dense_boxes import DenseBoxes, STDS
from gswinrmt_jax.models.dense.detector import Detector
from gswinrmt_jax.models.dense.rcnn import (
    of_class,
    RCNN,
    RCNNOutputs,
    Stage,
    StageOutputs,
)
from gswinrmt_jax.ops import assignment, roi_align
from gswinrmt_jax.ops import boxes as boxes_lib
from gswinrmt_jax.ops.assignment import Truth

Parts = dict[str, jax.Array]


def detection_loss(
    model: Detector, found: DenseBoxes | RCNNOutputs, truth: Truth
) -> tuple[jax.Array, Parts]:
  """Returns the loss of a detector, and its parts by name.

  Args:
    model: The detector.
    found: What it returned for the images and their truth.
    truth: The objects of each image.

  Returns:
    The loss, NaN if an object has a label that is no class of the model; its
    parts.
  """
  if isinstance(found, DenseBoxes):
    loss, parts = retina_loss(found, truth)
  else:
    loss, parts = rcnn_loss(model.head, found, truth)
  # Another label would be learnt as background.
  known = (truth.labels >= 0) & (truth.labels < model.head.num_classes)
  unused = truth.valid == 0  # Not `~`, which inverts bits of integers.
  return jnp.where((known | unused).all(), loss, jnp.nan), parts


def smooth_l1(
    error: Float[Array, '*b'], beta: float = 0.0
) -> Float[Array, '*b']:
  """Returns `e^2 / (2 beta)` if `|e| < beta`, else `|e| - beta / 2`."""
  if not beta:
    return jnp.maximum(error, -error)  # gradient 0 at 0, which `abs` lacks
  return optax.losses.huber_loss(error, delta=beta) / beta


def focal(
    logits: Float[Array, '*b k'],
    labels: Int[Array, '*b'],
    counted: Bool[Array, '*b'],
) -> Float[Array, '']:
  """Returns the sum of the focal loss (Lin et al., 2017b, eq. 5) over classes.

      - a (1 - p)^2 log(p),  p = sigmoid(logit),  a = 1/4  for the own class
      - a p^2 log(1 - p),                         a = 3/4  for all others

  Args:
    logits: Logits of each class, in at least float32.
    labels: The own class; -1 for none.
    counted: Which boxes count.
  """
  targets = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  losses = optax.losses.sigmoid_focal_loss(
      logits, targets, alpha=0.25, gamma=2.0
  )
  return jnp.where(counted[..., None], losses, 0).sum()


def _of_objects(values, assigned):
  """Returns the values of the object assigned to each box, `[b n ...]`."""
  rows = (assigned - 1).clip(0)
  return jax.vmap(lambda values, row: values[row])(values, rows)


def _delta_loss(boxes, deltas, assigned, truth, stds, beta=0.0):
  """Returns the sum of smooth L1 over the deltas of boxes with an object."""
  positive = (assigned > 0)[..., None]
  # Others may be empty, which has no logarithm.
  unit = jnp.array([[[0, 0, 1, 1]]], boxes.dtype)
  wanted = boxes_lib.encode(
      jnp.where(positive, boxes, unit),
      jnp.where(positive, _of_objects(truth.boxes, assigned), unit),
      stds,
  )
  error = deltas - jax.lax.stop_gradient(wanted.astype(deltas.dtype))
  return smooth_l1(jnp.where(positive, error, 0), beta).sum()


def retina_loss(found: DenseBoxes, truth: Truth) -> tuple[jax.Array, Parts]:
  """Returns focal loss (alpha 1/4, gamma 2) + L1 of RetinaNet.

  Both are sums over anchors, divided by the number of those with an object;
  each image counts as at least one.

  Args:
    found: What the head returned.
    truth: The objects.

  Returns:
    The loss, and its parts: 'loss_cls', 'loss_bbox', 'positives'.
  """
  positives = (found.assigned > 0).sum(1).clip(1).sum()
  labels = _of_objects(truth.labels, found.assigned)
  labels = jnp.where(found.assigned > 0, labels, -1)
  counted = found.assigned != assignment.IGNORED
  anchors = jnp.broadcast_to(found.anchors[None], found.deltas.shape)
  parts = {
      'loss_cls': focal(found.logits, labels, counted) / positives,
      'loss_bbox': _delta_loss(
          anchors, found.deltas, found.assigned, truth, STDS
      )
      / positives,
  }
  return sum(parts.values()), parts | {'positives': positives}


def rcnn_loss(
    head: RCNN, found: RCNNOutputs, truth: Truth
) -> tuple[jax.Array, Parts]:
  """Returns the loss of Mask R-CNN, or of Cascade Mask R-CNN.

  RPN: binary cross-entropy + L1 (in a cascade smooth L1, beta 1/9). Both are
  sums over the drawn anchors, divided by their number; an image adds at least 1
  for anchors with an object and at least 1 for those without.
  Each stage: cross-entropy of classes and background, mean over boxes; L1 of
  the own class's deltas (in a cascade 10 (1 - giou) of the own class's box), a
  sum divided by the number of all boxes; and binary cross-entropy of the own
  class's mask, mean over the cells of boxes with an object. They are weighted
  by the stage.

  Args:
    head: The head that returned the outputs.
    found: Its outputs.
    truth: The objects, with bitmaps.

  Returns:
    The loss, and its parts: 'loss_rpn_cls', 'loss_rpn_bbox', 'positives' and,
    of each stage, 'loss_cls', 'loss_bbox', 'loss_mask', which in a cascade have
    a prefix 's0.', 's1.', 's2.'.

  Raises:
    ValueError: If there are no bitmaps.
  """
  rpn = found.rpn
  positive, counted = rpn.assigned > 0, rpn.assigned >= 0
  count = positive.sum(1).clip(1) + (counted & ~positive).sum(1).clip(1)
  entropy = optax.losses.sigmoid_binary_cross_entropy(
      rpn.logits[..., 0], positive.astype(rpn.logits.dtype)
  )
  anchors = jnp.broadcast_to(rpn.anchors[None], rpn.deltas.shape)
  beta = 1 / 9 if head.is_cascade else 0.0
  boxes = _delta_loss(anchors, rpn.deltas, rpn.assigned, truth, STDS, beta)
  parts = {
      'loss_rpn_cls': jnp.where(counted, entropy, 0).sum() / count.sum(),
      'loss_rpn_bbox': boxes / count.sum(),
  }
  total = sum(parts.values())
  for index, (stage, outputs) in enumerate(
      zip(head.stages, found.stages, strict=True)
  ):
    losses = stage_losses(head, stage, outputs, truth)
    total += stage.weight * sum(losses.values())
    prefix = f's{index}.' if head.is_cascade else ''
    parts |= {prefix + name: loss for name, loss in losses.items()}
  return total, parts | {'positives': positive.sum()}


def stage_losses(
    head: RCNN, stage: Stage, found: StageOutputs, truth: Truth
) -> Parts:
  """Returns 'loss_cls', 'loss_bbox' and 'loss_mask' of a stage."""
  rois, assigned = found.rois, found.rois.assigned
  count = rois.valid.sum().clip(1)
  entropy = optax.losses.softmax_cross_entropy_with_integer_labels(
      found.logits, rois.labels
  )
  labels = rois.labels.clip(0, head.num_classes - 1)
  deltas = of_class(found.deltas, labels)
  if head.is_cascade:
    boxes = boxes_lib.decode(rois.boxes, deltas, stage.stds)
    positive = assigned > 0
    wanted = _of_objects(truth.boxes, assigned).astype(boxes.dtype)
    wanted = jnp.where(positive[..., None], wanted, boxes)
    lost = 10 * (1 - boxes_lib.giou(boxes, jax.lax.stop_gradient(wanted)))
    box_loss = jnp.where(positive, lost, 0).sum()
  else:
    box_loss = _delta_loss(rois.boxes, deltas, assigned, truth, stage.stds)
  return {
      'loss_cls': jnp.where(rois.valid, entropy, 0).sum() / count,
      'loss_bbox': box_loss / count,
      'loss_mask': _mask_loss(found, labels, truth),
  }


def _mask_loss(found, labels, truth):
  """Returns the mean binary cross-entropy over cells; 0 without objects."""
  if truth.bitmaps is None:
    raise ValueError('The mask head learns from truth.bitmaps, which are None.')
  frames = truth.boxes if truth.frames is None else truth.frames
  count, cells = found.mask_logits.shape[1:3]
  assigned, boxes = found.rois.assigned[:, :count], found.rois.boxes[:, :count]
  logits = of_class(found.mask_logits, labels[:, :count], axis=-1)
  positive = (assigned > 0)[..., None]
  # Resampling an empty frame, that of an unused row, would never end.
  frames = jnp.where(positive, _of_objects(frames, assigned), boxes)
  targets = jax.vmap(functools.partial(roi_align.mask_targets, bins=cells))(
      _of_objects(truth.bitmaps, assigned),
      frames.astype(boxes.dtype),
      boxes,
  )
  entropy = optax.losses.sigmoid_binary_cross_entropy(
      logits, jax.lax.stop_gradient(targets)
  )
  positive = positive[..., None]
  total = jnp.where(positive, entropy, 0).sum()
  return total / (positive.sum() * cells**2).clip(1)
