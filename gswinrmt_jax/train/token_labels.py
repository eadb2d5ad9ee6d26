"""Training with token labels: what a run does in place of the plain parts."""

from collections.abc import Iterator
import functools

import jax.numpy as jnp
import ml_collections

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.augment import label_map
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, label_maps
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import build, token_loss, train_step


def check(config: ml_collections.ConfigDict, info: datasets.Info) -> bool:
  """Returns whether a resolved recipe trains with token labels.

  Raises:
    UserError: If its fields contradict each other, or its images are no whole
      number of tokens.
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
  augment_lib.check_with_map(build.augment_settings(config, info))
  side = config.data.image_size
  # Of images as they are stored the size may be known only when they are read.
  size = (side, side) if side else info.image_size
  label_map.extents(size, build.stride(config))
  return True


def choose(
    config: ml_collections.ConfigDict, info: datasets.Info
) -> tuple[train_step.Augmentation, train_step.Loss]:
  """Returns augmentation and loss of a resolved recipe, plain or of tokens.

  Raises:
    UserError: As `check`, or if a setting is out of range.
  """
  if not check(config, info):
    return build.make_augmentation(config, info), train_step.class_loss
  loss = functools.partial(
      token_loss.token_loss, weight=config.token_label_weight
  )
  return _make_augmentation(config, info), loss


def _make_augmentation(config, info):
  """Returns `(key, batch) -> (image, targets)`: of images, of their tokens.

  A batch without 'box' has whole images.
  """
  settings, stride = build.augment_settings(config, info), build.stride(config)

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
        extents=label_map.extents((height, width), stride),
    )

  return augmentation


def open_for(
    config: ml_collections.ConfigDict,
) -> label_maps.LabelMaps | None:
  """Returns the maps of a recipe that was checked; None if it has none.

  Raises:
    UserError: If the maps are not those of the training records.
  """
  if not config.token_label_weight:
    return None
  return label_maps.open_maps(
      config.data.label_maps,
      name=config.data.name,
      split=config.data.train_split,
      data_dir=config.data.dir,
  )


def with_maps(
    batches: Iterator[batches_lib.Batch], maps: label_maps.LabelMaps
) -> Iterator[batches_lib.Batch]:
  """Adds 'map_index' and 'map_score' [b s t m] by the records' rows."""
  for batch in batches:
    yield batch | maps.gather(batch['row'])
