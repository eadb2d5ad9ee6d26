"""Mask R-CNN (He et al., 2017), Cascade Mask R-CNN (Cai, Vasconcelos, 2018).

Proposals of RPN are pooled from a pyramid. A box head classifies and refines
them, a mask head segments the object. A cascade repeats this: each stage starts
from the boxes of the stage before it, and asks for a higher IoU.
"""

from collections.abc import Sequence
import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gswinrmt_jax.models.dense import rpn as rpn_lib
from gswinrmt_jax.models.dense.dense_boxes import DenseBoxes, DetectionHead
from gswinrmt_jax.models.dense.roi_heads import BoxHead, MaskHead
from gswinrmt_jax.models.dense.semantic_fpn import FPN
from gswinrmt_jax.ops import anchors as anchors_lib
from gswinrmt_jax.ops import assignment, nms, padding, roi_align
from gswinrmt_jax.ops import boxes as boxes_lib
from gswinrmt_jax.ops.anchors import AnchorGrid
from gswinrmt_jax.ops.assignment import Rule, Truth

BOX_BINS = 7  # to a side of a pooled box
_MASK_BINS = 14


class Stage(NamedTuple):
  """What distinguishes the stages of a cascade.

  Attributes:
    rule: Which boxes have an object to find.
    stds: What deltas are divided by, see `boxes.encode`.
    weight: Weight of the losses.
  """

  rule: Rule
  stds: tuple[float, ...]
  weight: float = 1.0


MASK_STAGES = (Stage(Rule(0.5, 0.5, 0.5), (0.1, 0.1, 0.2, 0.2)),)
CASCADE_STAGES = (
    Stage(Rule(0.5, 0.5, None), (0.1, 0.1, 0.2, 0.2)),
    Stage(Rule(0.6, 0.6, None), (0.05, 0.05, 0.1, 0.1), weight=0.5),
    Stage(Rule(0.7, 0.7, None), (0.033, 0.033, 0.067, 0.067), weight=0.25),
)


class RoIs(NamedTuple):
  """Boxes that a stage is trained on; those with an object come first.

  Attributes:
    boxes: The boxes, in pixels.
    valid: Which rows are used.
    assigned: The object of each, see `assignment.assign`.
    labels: The class of each; that of background is the last.
    is_truth: Which boxes are objects themselves, not proposals.
  """

  boxes: Float[Array, '*b r 4']
  valid: Bool[Array, '*b r']
  assigned: Int[Array, '*b r']
  labels: Int[Array, '*b r']
  is_truth: Bool[Array, '*b r']


class StageOutputs(NamedTuple):
  """Predictions of a stage.

  Attributes:
    rois: The boxes.
    logits: Of each class and, last, of background.
    deltas: From each box to that of an object of each class.
    mask_logits: Of each class, for the first boxes: all that have an object.
  """

  rois: RoIs
  logits: Float[Array, 'b r _']
  deltas: Float[Array, 'b r k 4']
  mask_logits: Float[Array, 'b m _ _ k']


class RCNNOutputs(NamedTuple):
  """What the loss compares with the truth."""

  rpn: DenseBoxes
  stages: tuple[StageOutputs, ...]


class RCNN(DetectionHead):
  """Mask R-CNN or, with several stages, Cascade Mask R-CNN.

  It also has the attributes of `DetectionHead`.

  Attributes:
    rpn_channels: Channels of RPN.
    conv_channels: Channels of the four convolutions of a cascade's box heads.
    linear_channels: Channels of the linear layers of the box heads: two in Mask
      R-CNN, one in a cascade.
    mask_channels: Channels of the mask heads.
    anchor_scale: Side of an anchor, in strides.
    stages: The stages.
    train_candidates: Anchors of a level that compete in training.
    train_proposals: Proposals of an image in training.
    proposals: Proposals of an image in detection.
    rpn_samples: Anchors of an image that RPN is trained on.
    roi_samples: Boxes of an image that a stage is trained on.
  """

  rpn_channels: int = 256
  conv_channels: int = 256
  linear_channels: int = 1024
  mask_channels: int = 256
  anchor_scale: float = 8.0
  stages: tuple[Stage, ...] = MASK_STAGES
  train_candidates: int = 2000
  train_proposals: int = 1000
  proposals: int = 1000
  rpn_samples: int = 256
  roi_samples: int = 512

  @property
  def is_cascade(self) -> bool:
    """Whether there are several stages."""
    return len(self.stages) > 1

  def setup(self):
    """Creates the submodules; checkpoints have their attribute names."""
    self.neck = FPN(self.channels, self.dtype)
    self.rpn = rpn_lib.RPN(self.rpn_channels, self.dtype)
    convs, layers = (), 2 * (self.linear_channels,)
    if self.is_cascade:
      convs, layers = 4 * (self.conv_channels,), (self.linear_channels,)
    self.box_heads = [
        BoxHead(self.num_classes, convs, layers, self.dtype)
        for _ in self.stages
    ]
    self.mask_heads = [
        MaskHead(self.num_classes, self.mask_channels, self.dtype)
        for _ in self.stages
    ]

  @property
  def smallest_anchor(self) -> float:
    """Side of the smallest anchors, in pixels."""
    return self.strides[0] * self.anchor_scale

  def __call__(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      sizes: Int[Array, 'b 2'],
      extents: padding.Extents = None,
      *,
      train: bool,
      truth: Truth | None = None,
  ) -> RCNNOutputs | nms.Detections:
    """Returns outputs to train on or, without truth, detections."""
    levels, found, grid = self.predict(maps, extents)
    boxes, scores = self.propose(found, grid, sizes, training=truth is not None)
    if truth is None:
      return self.detect(levels, extents, boxes, scores, sizes)
    stages = self.train_stages(
        levels, extents, boxes, scores > 0, sizes, truth, train=train
    )
    return RCNNOutputs(self.rpn_targets(found, sizes, truth), stages)

  def predict(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      extents: padding.Extents = None,
  ) -> tuple[list[Array], DenseBoxes, AnchorGrid]:
    """Returns the pyramid, what RPN predicts on it, and the anchors.

    The fifth level, only for RPN, is every second position of the fourth.
    """
    valid = [padding.strided(extents, stride) for stride in self.strides]
    levels = self.neck(maps, valid)
    every = [*levels, levels[-1][:, ::2, ::2]]
    sizes = tuple(x.shape[1:3] for x in every)
    strides = (*self.strides, 2 * self.strides[-1])
    grid = AnchorGrid(sizes, strides, (self.anchor_scale,))
    return levels, self.rpn(every, grid, extents), grid

  def propose(
      self,
      found: DenseBoxes,
      grid: AnchorGrid,
      sizes: Int[Array, 'b 2'],
      *,
      training: bool,
  ) -> tuple[Float[Array, 'b p 4'], Float[Array, 'b p']]:
    """Returns proposals and their probabilities, see `rpn.propose`."""
    candidates, limit = self.candidates, self.proposals
    if training:
      candidates, limit = self.train_candidates, self.train_proposals
    return rpn_lib.propose(
        found, grid, sizes, candidates=candidates, limit=limit
    )

  def rpn_targets(
      self, found: DenseBoxes, sizes: Int[Array, 'b 2'], truth: Truth
  ) -> DenseBoxes:
    """Returns what RPN predicts, with the objects that anchors have to find.

    In a cascade, anchors that extend beyond the image take no part.
    """
    if self.is_cascade:
      whole = anchors_lib.inside(found.anchors, sizes)
      found = found._replace(valid=found.valid & whole)
    found = found.with_targets(truth, rpn_lib.RULE)

    def draw(assigned, key):
      index, used = assignment.sample(
          assigned, key, count=self.rpn_samples, positives=self.rpn_samples // 2
      )
      drawn = jnp.where(used, assigned[index], assignment.IGNORED)
      return jnp.full_like(assigned, assignment.IGNORED).at[index].set(drawn)

    keys = self._keys(len(sizes))
    return found._replace(assigned=jax.vmap(draw)(found.assigned, keys))

  def train_stages(
      self,
      levels: Sequence[Float[Array, 'b _ _ c']],
      extents: padding.Extents,
      boxes: Float[Array, 'b p 4'],
      valid: Bool[Array, 'b p'],
      sizes: Int[Array, 'b 2'],
      truth: Truth,
      *,
      train: bool,
  ) -> tuple[StageOutputs, ...]:
    """Returns the predictions of all stages for boxes drawn by their rules.

    Args:
      levels: The pyramid.
      extents: Valid rows and columns of the images, in pixels.
      boxes: Proposals.
      valid: Which of them exist.
      sizes: Height and width of each image, in pixels.
      truth: The objects of each image.
      train: Whether BN uses the batch's statistics.
    """
    found = []
    pool = functools.partial(
        roi_align.roi_align, levels, extents=extents, strides=self.strides
    )
    for index, stage in enumerate(self.stages):
      draw = functools.partial(self._draw, rule=stage.rule)
      rois = jax.vmap(draw)(truth, boxes, valid, self._keys(len(boxes)))
      pooled = pool(rois.boxes, bins=BOX_BINS)
      logits, deltas = self.box_heads[index](pooled, rois.valid, train=train)
      first = rois.boxes[:, : self._most_positive]
      pooled = pool(first, bins=_MASK_BINS)
      masks = self.mask_heads[index](pooled)
      found.append(StageOutputs(rois, logits, deltas, masks))
      labels = logits[..., :-1].argmax(-1)
      labels = jnp.where(rois.assigned > 0, rois.labels, labels)
      boxes = _refine(stage, rois.boxes, labels, deltas, sizes)
      valid = rois.valid & ~rois.is_truth
    return tuple(found)

  @property
  def _most_positive(self):
    """Largest number of boxes of a stage with an object; they come first."""
    return max(self.roi_samples // 4, 1)

  def _draw(self, truth, boxes, valid, key, rule):
    """Returns the boxes of one image to train on, objects included.

    The objects join after the assignment, each to find itself. If they took
    part in it, each would be its own best box, and `Rule.low_quality` would
    have no effect.
    """
    own = truth.valid & ~boxes_lib.is_empty(truth.boxes)
    own = jnp.where(own, jnp.arange(1, len(own) + 1), assignment.IGNORED)
    assigned = assignment.assign(boxes, valid, truth, rule)
    assigned = jnp.concatenate([own.astype(assigned.dtype), assigned])
    boxes = jnp.concatenate([truth.boxes.astype(boxes.dtype), boxes])
    index, used = assignment.sample(
        assigned,
        key,
        count=self.roi_samples,
        positives=self._most_positive,
    )
    assigned = jnp.where(used, assigned[index], assignment.IGNORED)
    labels = truth.labels[(assigned - 1).clip(0)]
    return RoIs(
        jnp.where(used[:, None], boxes[index], 0),
        used,
        assigned,
        jnp.where(assigned > 0, labels, self.num_classes),
        index < len(truth.boxes),
    )

  def detect(
      self,
      levels: Sequence[Float[Array, 'b _ _ c']],
      extents: padding.Extents,
      boxes: Float[Array, 'b p 4'],
      scores: Float[Array, 'b p'],
      sizes: Int[Array, 'b 2'],
  ) -> nms.Detections:
    """Returns detections, with the boxes of the last stage.

    Class logits are averaged over stages, before the softmax. Probabilities of
    masks are averaged, too. Proposals of score 0 are unused; one of NaN stays
    NaN. Other arguments are those of `train_stages`.
    """
    valid, total, refined = scores > 0, 0, boxes
    used = jnp.where(valid, 1, scores)
    pool = functools.partial(
        roi_align.roi_align, levels, extents=extents, strides=self.strides
    )
    for stage, head in zip(self.stages, self.box_heads, strict=True):
      boxes = refined
      pooled = pool(boxes, bins=BOX_BINS)
      logits, deltas = head(pooled, valid, train=False)
      total += logits / len(self.stages)
      best = logits[..., :-1].argmax(-1)
      refined = _refine(stage, boxes, best, deltas, sizes)
    scores = jax.nn.softmax(total)[..., :-1] * used[..., None]
    boxes = boxes_lib.decode(boxes[:, :, None], deltas, stage.stds)
    boxes = boxes_lib.clip(boxes, sizes[:, None, None])
    empty = boxes_lib.is_empty(boxes)
    found = self.select(boxes, jnp.where(empty, 0, scores))
    pooled = pool(found.boxes, bins=_MASK_BINS)
    masks = [
        jax.nn.sigmoid(of_class(head(pooled), found.labels, axis=-1))
        for head in self.mask_heads
    ]
    return found._replace(masks=sum(masks) / len(masks))

  def _keys(self, count):
    """Returns a random key for each image; None without the RNG stream."""
    if not self.has_rng('sampling'):
      return None
    return jax.random.split(self.make_rng('sampling'), count)


def _refine(stage, boxes, labels, deltas, sizes):
  """Returns the boxes of these classes, clipped to the images."""
  boxes = boxes_lib.decode(boxes, of_class(deltas, labels), stage.stds)
  return lax.stop_gradient(boxes_lib.clip(boxes, sizes[:, None]))


def of_class(values: Array, labels: Int[Array, 'b r'], axis: int = 2) -> Array:
  """Returns each box's values of one class.

  Args:
    values: Values of all classes, `[b, r, ...]`.
    labels: The class of each box.
    axis: The axis of classes.
  """
  shape = labels.shape + (1,) * (values.ndim - 2)
  index = labels.reshape(shape)
  return jnp.take_along_axis(values, index, axis).squeeze(axis)
