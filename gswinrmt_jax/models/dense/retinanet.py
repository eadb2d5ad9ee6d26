"""RetinaNet (Lin et al., 2017b): dense boxes and classes, focal loss."""

from collections.abc import Sequence
import math

from flax import linen as nn
import jax
from jaxtyping import Array, Float, Int

from gswinrmt_jax import ops
from gswinrmt_jax.models.dense import dense_boxes
from gswinrmt_jax.models.dense.dense_boxes import DenseBoxes, DetectionHead
from gswinrmt_jax.models.dense.semantic_fpn import FPN
from gswinrmt_jax.models.layers import Conv, xavier_uniform
from gswinrmt_jax.ops import nms, padding
from gswinrmt_jax.ops.anchors import AnchorGrid, RATIOS
from gswinrmt_jax.ops.assignment import Rule, Truth

RULE = Rule(positive=0.5, negative=0.4, low_quality=0.0)
_PRIOR = 0.01  # probability of each class when training starts
_OCTAVES = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))
_normal = nn.initializers.normal(0.01)


class RetinaNet(DetectionHead):
  """Pyramid of strides 8 to 128, and two towers of convolutions on each level.

      p_3, p_4, p_5 = FPN(x_2, x_3, x_4)
      p_6 = Conv3x3/2(x_4),    p_7 = Conv3x3/2(p_6)
      tower(p) = (ReLU Conv3x3)^n (p)
      logits, deltas = Conv3x3(tower(p)), Conv3x3(tower'(p))

  The towers have the same parameters on all levels.

  It also has the attributes of `DetectionHead`.

  Attributes:
    tower_channels: Channels of the towers.
    tower_depth: Convolutions of a tower, `n`.
    anchor_scale: Side of the smallest anchor, in strides.
  """

  tower_channels: int = 256
  tower_depth: int = 4
  anchor_scale: float = 4.0

  def setup(self):
    """Creates the submodules; checkpoints have their attribute names."""
    self.neck = FPN(self.channels, self.dtype)
    self.coarse = [
        Conv(self.channels, 3, self.dtype, xavier_uniform, stride=2)
        for _ in range(2)
    ]
    towers = [
        [
            Conv(self.tower_channels, 3, self.dtype, _normal)
            for _ in range(self.tower_depth)
        ]
        for _ in range(2)
    ]
    self.class_tower, self.box_tower = towers
    shapes = len(RATIOS) * len(_OCTAVES)
    wide = ops.wide_dtype(self.dtype)
    rare = nn.initializers.constant(-math.log(1 / _PRIOR - 1))
    features = shapes * self.num_classes
    self.classes = Conv(features, 3, wide, _normal, bias_init=rare)
    self.boxes = Conv(shapes * 4, 3, wide, _normal)

  @property
  def smallest_anchor(self) -> float:
    """Side of the smallest anchors, in pixels."""
    return self.strides[1] * self.anchor_scale

  def __call__(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      sizes: Int[Array, 'b 2'],
      extents: padding.Extents = None,
      *,
      train: bool,
      truth: Truth | None = None,
  ) -> DenseBoxes | nms.Detections:
    """Returns outputs to train on or, without truth, detections."""
    del train  # No layer differs in training.
    found, grid = self.predict(maps, extents)
    if truth is not None:
      return found.with_targets(truth, RULE)
    return self.detect(found, grid, sizes)

  def predict(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      extents: padding.Extents = None,
  ) -> tuple[DenseBoxes, AnchorGrid]:
    """Returns the predictions of all levels, and their anchors."""
    last = self.strides[-1]
    strides = (*self.strides[1:], 2 * last, 4 * last)
    valid = [padding.strided(extents, stride) for stride in strides]
    levels, last, before = self.neck(maps[1:], valid[:3]), maps[-1], valid[2]
    for conv, after in zip(self.coarse, valid[3:], strict=True):
      last, before = conv(last, before), after
      levels.append(last)
    found = []
    for x, within in zip(levels, valid, strict=True):
      classes = boxes = x
      for conv in self.class_tower:
        classes = jax.nn.relu(conv(classes, within))
      for conv in self.box_tower:
        boxes = jax.nn.relu(conv(boxes, within))
      found.append((self.classes(classes, within), self.boxes(boxes, within)))
    sizes = tuple(x.shape[1:3] for x in levels)
    scales = tuple(self.anchor_scale * octave for octave in _OCTAVES)
    grid = AnchorGrid(sizes, strides, scales)
    return dense_boxes.dense_boxes(found, grid, extents), grid

  def detect(
      self, found: DenseBoxes, grid: AnchorGrid, sizes: Int[Array, 'b 2']
  ) -> nms.Detections:
    """Returns the detections of each image, in pixels of the batch."""
    boxes, scores = dense_boxes.candidates(found, grid, sizes, self.candidates)
    batch, classes = sizes.shape[0], scores.shape[-1]
    return self.select(
        boxes.reshape(batch, -1, 1, 4), scores.reshape(batch, -1, classes)
    )
