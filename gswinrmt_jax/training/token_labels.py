"""Training with token labels: their maps, their augmentation, their loss."""

from collections.abc import Callable, Iterator
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.augment import box_mix, label_map
from gswinrmt_jax.data import datasets, label_maps, pipeline
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import build
from gswinrmt_jax.training.step import Augmentation, Loss

# What an augmentation must leave out, since a map does not follow it.
_MUST_BE_OFF = ('crop_padding', 'mixup_alpha', 'cutmix_alpha')


def check(config: ml_collections.ConfigDict) -> bool:
  """Returns whether a resolved recipe trains with token labels.

  Raises:
    UserError: If its fields contradict each other.
  """
  weight, folder = config.token_label_weight, config.data.label_maps
  if not 0 <= weight < float('inf'):  # Written so that NaN is refused too.
    raise UserError(
        f'config.token_label_weight is {weight}: must be at least 0'
    )
  if bool(weight) != bool(folder):
    raise UserError(
        f'config.token_label_weight is {weight} and config.data.label_maps '
        f"'{folder}': token labels need both, other training neither"
    )
  if not weight:
    return False
  if not config.model.dense_head:
    raise UserError(
        f'token labels need a model with a dense head, not '
        f'{config.model.name}: take rmt_s_tl, rmt_b_tl or rmt_l_tl, or set '
        'config.model.dense_head=True'
    )
  for name in _MUST_BE_OFF:
    if config.augment[name]:
      raise UserError(
          f'config.augment.{name} is {config.augment[name]}: must be 0 with '
          'token labels, whose maps do not follow it'
      )
  return True


@dataclasses.dataclass(frozen=True, eq=False)
class TokenLabels:
  """What a run with token labels does in place of the plain parts.

  Attributes:
    maps: Those of the training records.
    weight: Of the dense logits' loss.
  """

  maps: label_maps.LabelMaps
  weight: float

  def batches(
      self, batches: Iterator[pipeline.Batch]
  ) -> Iterator[pipeline.Batch]:
    """Adds 'map_index' and 'map_score' [b s t m] by the records' rows."""
    for batch in batches:
      yield batch | self.maps.gather(batch['row'])

  def augmentation(
      self,
      config: ml_collections.ConfigDict,
      info: datasets.Info,
      stride: int,
  ) -> Augmentation:
    """Returns `(key, batch) -> (image, targets)`: of images, of their tokens.

    A batch without 'box' has whole images; `stride` is that of the last map.
    """
    settings = build.augment_settings(config, info)

    def augmentation(key, batch):
      image = batch['image']
      count, height, width, _ = image.shape
      if 'box' in batch:
        box = batch['box']
      else:
        box = jnp.tile(jnp.array([[0.0, 0.0, 1.0, 1.0]]), (count, 1))
      whole = label_map.spread(
          batch['map_index'],
          batch['map_score'],
          num_classes=settings.num_classes,
      )
      return augment_lib.augment_with_map(
          key,
          image,
          whole,
          box,
          settings,
          extents=(-(-height // stride), -(-width // stride)),
      )

    return augmentation

  @property
  def loss(self) -> Loss:
    """The loss with box mixing, see `token_loss`."""

    def loss(apply, image, targets, key):
      return token_loss(apply, image, targets, key, weight=self.weight)

    return loss


def token_loss(
    apply: Callable[..., Any],
    image: jax.Array,
    targets: tuple[jax.Array, jax.Array],
    key: jax.Array,
    *,
    weight: float,
) -> tuple[jax.Array, tuple[jax.Array, Any]]:
  """Returns the loss of token labels (LV-ViT, as in the released RMT).

      L = CE(class logits, mixed target) + weight mean_hw CE(dense, target_hw)

  Images are mixed in a box behind the stem and their dense logits swapped back
  in the model; the class logits are of the mixed image, and so is their target.

  Args:
    apply: The model's, in training.
    image: Normalised.
    targets: Soft, of images [b k] and of their tokens [b h w k].
    key: Draws the box.
    weight: Of the dense logits.

  Returns:
    The loss, and class logits and updates of the model.
  """
  of_image, of_tokens = targets
  height, width = of_tokens.shape[1:3]
  box = box_mix.draw_box(key, height=height, width=width)
  (logits, dense), updates = apply(
      image, box=box, method='class_and_dense_logits'
  )
  of_image = box_mix.mix_targets(of_image, box)
  class_loss = optax.softmax_cross_entropy(logits, of_image).mean()
  dense_loss = optax.softmax_cross_entropy(dense, of_tokens).mean()
  return class_loss + weight * dense_loss, (logits, updates)


def open_for(config: ml_collections.ConfigDict) -> TokenLabels | None:
  """Returns what a resolved recipe needs for token labels; None if nothing.

  Raises:
    UserError: If the fields contradict each other, or the maps are not those of
      the training records.
  """
  if not check(config):
    return None
  maps = label_maps.open_maps(
      config.data.label_maps,
      name=config.data.name,
      split=config.data.train_split,
      data_dir=config.data.dir,
  )
  return TokenLabels(maps, config.token_label_weight)
