"""Semantic segmentation: a backbone and a decode head."""

from collections.abc import Sequence
from typing import Any

from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense.dense_model import DenseModel
from gswinrmt_jax.models.dense.semantic_fpn import FPN, SemanticFPNHead
from gswinrmt_jax.models.dense.upernet import FCNHead, UperNetHead
from gswinrmt_jax.ops import padding

# Channels of each decode head, its neck and its auxiliary head, as in RMT's
# release; 0 for none.
HEADS = {
    'fpn': {'channels': 128, 'neck_channels': 256, 'auxiliary_channels': 0},
    'uper': {'channels': 512, 'neck_channels': 0, 'auxiliary_channels': 256},
}
TITLES = {'fpn': 'Semantic FPN', 'uper': 'UperNet'}
Logits = Float[Array, 'b h w k']


class Segmenter(DenseModel):
  """A backbone with a decode head; built by `create_segmenter`.

  Attributes:
    decoder: A name in `HEADS`.
    num_classes: Number of logits per pixel.
    channels: Channels of the decode head.
    neck_channels: Channels of the neck; 0 for none.
    auxiliary_channels: Channels of the auxiliary head; 0 for none.
    dropout_rate: Probability that training drops a channel before a classifier.
  """

  decoder: str
  num_classes: int
  channels: int
  neck_channels: int
  auxiliary_channels: int
  dropout_rate: float = 0.1

  def setup(self):
    """Creates the submodules; checkpoints have their attribute names."""
    if self.neck_channels:
      self.neck = FPN(self.neck_channels, self.dtype)
    head = SemanticFPNHead if self.decoder == 'fpn' else UperNetHead
    settings = self.dropout_rate, self.dtype
    self.decode_head = head(self.num_classes, self.channels, *settings)
    if self.auxiliary_channels:
      self.auxiliary_head = FCNHead(
          self.num_classes, self.auxiliary_channels, *settings
      )

  def __call__(
      self,
      x: Float[Array, 'b h w 3'],
      *,
      train: bool,
      extents: padding.Extents = None,
  ) -> Logits:
    """Classifies every pixel of normalised images.

    Arguments and errors are those of `Backbone.__call__`. In training, the RNG
    stream 'dropout' also drops channels before classifiers.

    Returns:
      Logits at the size of the images, in at least float32; those of padding
      are meaningless.
    """
    maps = self._maps(x, train, extents)
    if self.is_initializing() and self.auxiliary_channels:
      self.auxiliary(maps, train=train, extents=extents)
    logits = self.decode(maps, train=train, extents=extents)
    return self._at_pixels(logits, x, extents, stage=0)

  def logits_and_auxiliary(
      self,
      x: Float[Array, 'b h w 3'],
      *,
      train: bool,
      extents: padding.Extents = None,
  ) -> tuple[Logits, Logits]:
    """Returns the logits of both heads at every pixel, for training.

    It is for segmenters with an auxiliary head. Arguments, logits and errors
    are those of `__call__`.

    Returns:
      Logits of the decode head, and of the auxiliary head.
    """
    maps = self._maps(x, train, extents)
    logits = self.decode(maps, train=train, extents=extents)
    auxiliary = self.auxiliary(maps, train=train, extents=extents)
    return (
        self._at_pixels(logits, x, extents, stage=0),
        self._at_pixels(auxiliary, x, extents, stage=-2),
    )

  def decode(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      *,
      train: bool,
      extents: padding.Extents = None,
  ) -> Logits:
    """Returns the decode head's logits at the size of the first map."""
    valid = [padding.strided(extents, s) for s in self.arch.strides]
    if self.neck_channels:
      maps = self.neck(maps, valid)
    return self.decode_head(maps, valid, train=train)

  def auxiliary(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      *,
      train: bool,
      extents: padding.Extents = None,
  ) -> Logits:
    """Returns the auxiliary logits at the size of the second-to-last map."""
    valid = padding.strided(extents, self.arch.strides[-2])
    return self.auxiliary_head(maps[-2], valid, train=train)

  def _maps(self, x, train, extents):
    """Returns the maps of the backbone, from fine to coarse."""
    found = self.backbone.features(x, train=train, extents=extents)
    return list(found.values())

  def _at_pixels(self, logits, x, extents, stage):
    """Resizes the logits of a stage's map to the size of the images."""
    valid = padding.strided(extents, self.arch.strides[stage])
    return ops.resize_bilinear(logits, valid, extents, size=x.shape[1:3])


def create_segmenter(
    name: str,
    *,
    head: str,
    num_classes: int,
    channels: int | None = None,
    neck_channels: int | None = None,
    auxiliary_channels: int | None = None,
    dropout_rate: float = 0.1,
    dtype: Dtype = jnp.float32,
    remat: str = 'none',
    **overrides: Any,
) -> Segmenter:
  """Returns a segmenter on one of the papers' models, with any field changed.

      model = create_segmenter('rmt_s', head='uper', num_classes=150)
      variables = model.init(jax.random.key(0), images, train=False)
      logits = model.apply(variables, images, train=False)  # [b h w 150]

  Args:
    name: A name in `named.MODELS`.
    head: 'fpn' for Semantic FPN, 'uper' for UperNet.
    num_classes: Number of logits per pixel.
    channels: Channels of the decode head. Here and below, None means the number
      of RMT's release.
    neck_channels: Channels of the feature pyramid of 'fpn'.
    auxiliary_channels: Channels of the auxiliary head, which is used only in
      training. 0 for none, as in the release with 'fpn'.
    dropout_rate: Probability that training drops a channel before a classifier.
    dtype: As in `create_model`.
    remat: As in `create_model`.
    **overrides: Fields of `architecture.Architecture`, except `head`. The
      default of `feature_norm` is True here, as in the release.

  Raises:
    ValueError: If a name or field does not exist, or a value is invalid.
  """
  if head not in HEADS:
    raise ValueError(f'{head=} is not one of {tuple(HEADS)}.')
  num_classes = factory.whole('num_classes', num_classes, least=1)
  if not 0 <= dropout_rate < 1:
    raise ValueError(f'{dropout_rate=} must be in [0, 1).')
  backbone = factory.create_dense_backbone(
      name,
      dtype=dtype,
      remat=remat,
      of_head=(*HEADS[head], 'dropout_rate'),
      **overrides,
  )
  wanted = {
      'channels': channels,
      'neck_channels': neck_channels,
      'auxiliary_channels': auxiliary_channels,
  }
  widths = HEADS[head] | {k: v for k, v in wanted.items() if v is not None}
  least = {'channels': 1, 'neck_channels': int(head == 'fpn')}
  widths = {
      field: factory.whole(field, width, least=least.get(field, 0))
      for field, width in widths.items()
  }
  if head == 'uper' and widths['neck_channels']:
    raise ValueError("neck_channels is for head='fpn': UperNet has no neck.")
  if widths['auxiliary_channels'] and backbone.arch.stages < 2:
    raise ValueError(
        f'{name} has one map, and the auxiliary head reads the second to last: '
        'set auxiliary_channels=0.'
    )
  return Segmenter(
      backbone=backbone,
      decoder=head,
      num_classes=num_classes,
      dropout_rate=dropout_rate,
      **widths,
  )
