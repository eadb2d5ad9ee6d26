"""RetinaNet (Lin et al., 2017b): dense boxes and classes, focal loss."""

from collections.abc import Sequence
import math

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gswinrmt_jax.models.dense import dense_boxes
from gswinrmt_jax.models.dense.dense_boxes import DenseBoxes
from gswinrmt_jax.models.dense.layers import Conv, xavier_uniform
from gswinrmt_jax.models.dense.semantic_fpn import FPN
from gswinrmt_jax.ops import nms, padding
from gswinrmt_jax.ops.anchors import AnchorGrid, RATIOS
from gswinrmt_jax.ops.assignment import Rule, Truth

RULE = Rule(positive=0.5, negative=0.4, low_quality=0.0)
_PRIOR = 0.01  # probability of each class when training starts
_OCTAVES = (1.0, 2 ** (1 / 3), 2 ** (2 / 3))
_normal = nn.initializers.normal(0.01)


class RetinaNet(nn.Module):
  """Pyramid of strides 8 to 128, and two towers of convolutions on each level.

      m = FPN(x_2, x_3, x_4),    p_6 = Conv3x3/2(x_4),    p_7 = Conv3x3/2(p_6)
      tower(p) = (ReLU Conv3x3)^n (p)
      logits, deltas = Conv3x3(tower(p)), Conv3x3(tower'(p))

  The towers have the same parameters on all levels.

  Attributes:
    num_classes: Number of classes.
    channels: Channels of the pyramid.
    tower_channels: Channels of the towers.
    tower_depth: Convolutions of a tower, `n`.
    anchor_scale: Side of the smallest anchor, in strides.
    strides: Strides of the four maps of the backbone.
    candidates: Anchors of a level that compete in detection.
    detections: Most detections of an image.
    least_score: Least probability of a detection.
    dtype: Computation dtype.
  """

  num_classes: int
  channels: int = 256
  tower_channels: int = 256
  tower_depth: int = 4
  anchor_scale: float = 4.0
  strides: tuple[int, ...] = (4, 8, 16, 32)
  candidates: int = 1000
  detections: int = 100
  least_score: float = 0.05
  dtype: Dtype = jnp.float32

  def setup(self):
    """Creates the submodules; checkpoints have their attribute names."""
    self.neck = FPN(self.channels, self.dtype)
    self.coarse = [
        nn.Conv(
            self.channels,
            (3, 3),
            strides=2,
            padding=1,
            dtype=self.dtype,
            kernel_init=xavier_uniform,
        )
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
    wide = jnp.promote_types(self.dtype, jnp.float32)
    self.classes = nn.Conv(
        shapes * self.num_classes,
        (3, 3),
        padding=1,
        dtype=wide,
        kernel_init=_normal,
        bias_init=nn.initializers.constant(-math.log(1 / _PRIOR - 1)),
    )
    self.boxes = Conv(shapes * 4, 3, wide, _normal)

  @property
  def _scales(self):
    return tuple(self.anchor_scale * octave for octave in _OCTAVES)

  def __call__(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      sizes: Int[Array, 'b 2'],
      extents: padding.Extents = None,
      *,
      train: bool,
      truth: Truth | None = None,
  ) -> DenseBoxes | nms.Detections:
    """Returns predictions with assigned objects, or detections without truth.

    Args:
      maps: The four maps of the backbone, from fine to coarse.
      sizes: Height and width of each image, in pixels.
      extents: Valid rows and columns, in pixels; None for the whole canvas.
      train: Not used: no layer differs in training.
      truth: The objects of each image.
    """
    del train
    found, grid = self.predict(maps, extents)
    if truth is not None:
      return found.assign(truth, RULE)
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
      last, before = conv(padding.fill(last, before)), after
      levels.append(last)
    found = []
    for x, within in zip(levels, valid, strict=True):
      classes = _apply(self.class_tower, x, within)
      boxes = _apply(self.box_tower, x, within)
      logits = self.classes(padding.fill(classes, within))
      found.append((logits, self.boxes(boxes, within)))
    sizes = tuple(x.shape[1:3] for x in levels)
    grid = AnchorGrid(sizes, strides, self._scales)
    return dense_boxes.dense_boxes(found, grid, extents), grid

  def detect(
      self, found: DenseBoxes, grid: AnchorGrid, sizes: Int[Array, 'b 2']
  ) -> nms.Detections:
    """Returns the detections of each image, in pixels of the batch."""

    def detect(logits, deltas, valid, size):
      scores = jax.nn.sigmoid(logits) * valid[:, None]
      best, exist = grid.best(scores.max(-1), self.candidates)
      best, exist = best.ravel(), exist.ravel()
      boxes, whole = dense_boxes.decode(found.anchors[best], deltas[best], size)
      return nms.select(
          boxes[:, None],
          scores[best] * (exist & whole)[:, None],
          least_score=self.least_score,
          threshold=0.5,
          limit=self.detections,
      )

    return jax.vmap(detect)(found.logits, found.deltas, found.valid, sizes)


def _apply(tower, x, extents):
  for conv in tower:
    x = jax.nn.relu(conv(x, extents))
  return x
