"""Object detection and instance segmentation: a backbone and a head."""

import dataclasses
from typing import Any

from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense.dense_boxes import DenseBoxes, DetectionHead
from gswinrmt_jax.models.dense.dense_model import DenseModel
from gswinrmt_jax.models.dense.rcnn import (
    CASCADE_STAGES,
    MASK_STAGES,
    RCNN,
    RCNNOutputs,
)
from gswinrmt_jax.models.dense.retinanet import RetinaNet
from gswinrmt_jax.ops import padding
from gswinrmt_jax.ops.assignment import Truth
from gswinrmt_jax.ops.nms import Detections

# The class of each head, and its settings that are not defaults.
HEADS = {
    'retina': (RetinaNet, {}),
    'mask': (RCNN, {'stages': MASK_STAGES}),
    'cascade': (RCNN, {'stages': CASCADE_STAGES, 'train_proposals': 2000}),
}
TITLES = {
    'retina': 'RetinaNet',
    'mask': 'Mask R-CNN',
    'cascade': 'Cascade Mask R-CNN',
}


class Detector(DenseModel):
  """A backbone with the head of a detector; built by `create_detector`.

  Attributes:
    head: The head, of the backbone's dtype.
    round_extents: Sides of images are rounded up to a multiple of this many
      pixels, by zeros which count as image. 1 makes the padding of a batch have
      no effect. mmdetection pads to 32, so released weights need 32.
  """

  head: DetectionHead
  round_extents: int = 1

  def __call__(
      self,
      x: Float[Array, 'b h w 3'],
      *,
      train: bool,
      extents: padding.Extents = None,
      truth: Truth | None = None,
  ) -> Detections | DenseBoxes | RCNNOutputs:
    """Detects objects or, given their truth, returns what a loss needs.

    `truth` has the objects of each image; the other arguments and errors are
    those of `Backbone.__call__`. Two-stage detectors draw the boxes that they
    train on from the RNG stream 'sampling'; without it, they take the first.

    Returns:
      Detections in pixels of `x`, with boxes clipped to the images; with truth,
      the outputs that `train.detection_losses` compares with it.
    """
    side, valid, sizes = self.round_extents, extents, extents
    if extents is None:
      sizes = jnp.tile(jnp.array([x.shape[1:3]]), (x.shape[0], 1))
    elif side > 1:
      padding.check(extents, x.shape)
      valid = -(-extents // side) * side
      x = padding.fill(x, extents)
    if x.ndim == 4:  # `features` refuses other shapes.
      missing = [(0, -length % side) for length in x.shape[1:3]]
      x = jnp.pad(x, [(0, 0), *missing, (0, 0)])
    maps = self.backbone.features(x, train=train, extents=valid)
    return self.head(
        list(maps.values()), sizes, valid, train=train, truth=truth
    )


def head_fields(head: str) -> dict[str, Any]:
  """Returns the fields of a head that can be chosen, with released values.

  They are numbers that have a default, which `num_classes` has not.
  """
  kind, settings = HEADS[head]
  fields = {
      field.name: settings.get(field.name, field.default)
      for field in dataclasses.fields(kind)
  }
  return {k: v for k, v in fields.items() if isinstance(v, int | float)}


def create_detector(
    name: str,
    *,
    head: str,
    num_classes: int = 80,
    round_extents: int = 1,
    dtype: Dtype = jnp.float32,
    remat: str = 'none',
    **overrides: Any,
) -> Detector:
  """Returns a detector on one of the papers' models, with any field changed.

      model = create_detector('rmt_s', head='retina', num_classes=80)
      variables = model.init(jax.random.key(0), images, train=False)
      found = model.apply(variables, images, train=False)  # boxes, scores, ...

  Args:
    name: A name in `named.MODELS`, of four stages.
    head: 'retina' for RetinaNet, 'mask' for Mask R-CNN, 'cascade' for Cascade
      Mask R-CNN.
    num_classes: Number of classes, without background.
    round_extents: See `Detector`.
    dtype: As in `create_model`.
    remat: As in `create_model`.
    **overrides: Attributes of the head, such as `channels` or `anchor_scale`,
      and fields of `architecture.Architecture`. The default of `feature_norm`
      is True here, as in the release.

  Raises:
    ValueError: If a name or field does not exist, or a value is invalid.
  """
  if head not in HEADS:
    raise ValueError(f'{head=} is not one of {tuple(HEADS)}.')
  (kind, settings), own = HEADS[head], head_fields(head)
  chosen = own | {k: v for k, v in overrides.items() if k in own}
  for field, released in own.items():
    if isinstance(released, int):
      chosen[field] = factory.whole(field, chosen[field], least=1)
  if not chosen['anchor_scale'] > 0:
    raise ValueError(f'anchor_scale={chosen["anchor_scale"]} must be above 0.')
  if not 0 <= chosen['least_score'] < 1:
    raise ValueError(f'least_score={chosen["least_score"]} must be in [0, 1).')
  for field in overrides:
    others = [repr(each) for each in HEADS if field in head_fields(each)]
    if others and field not in own:
      raise ValueError(f'{field} is for head={" or ".join(others)}.')
  backbone = factory.create_dense_backbone(
      name,
      dtype=dtype,
      remat=remat,
      of_head=own,
      **{k: v for k, v in overrides.items() if k not in own},
  )
  if (stages := backbone.arch.stages) != 4:
    raise ValueError(
        f'{name} has {stages} stages: a detector reads the maps of four.'
    )
  return Detector(
      backbone=backbone,
      head=kind(
          num_classes=factory.whole('num_classes', num_classes, least=1),
          strides=backbone.arch.strides,
          dtype=backbone.dtype,
          parent=None,
          **settings | chosen,
      ),
      round_extents=factory.whole('round_extents', round_extents, least=1),
  )
