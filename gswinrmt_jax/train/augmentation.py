"""What a train step does to a batch before the model: images, and targets."""

from collections.abc import Callable, Mapping
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.augment import photometric, token_labels
from gswinrmt_jax.data import datasets
from gswinrmt_jax.ops import assignment, padding
from gswinrmt_jax.train.schedule import Schedule

Batch = Mapping[str, jax.Array]
# (key, batch, number of updates already made)
#   -> (normalised image, targets of the loss)
Augmentation = Callable[
    [jax.Array, Batch, int | jax.Array], tuple[jax.Array, Any]
]


def from_config(
    config: ml_collections.ConfigDict,
    info: datasets.Info,
    schedule: Schedule,
    model: nn.Module,
) -> Augmentation:
  """Returns the augmentation of a resolved config.

  Args:
    config: The config.
    info: The data set; its image size is that of the records.
    schedule: The run's schedule, which says when mixing ends.
    model: The model, whose tokens token labels are for.

  Raises:
    UserError: If token labels cannot be used: an image is not a whole number of
      tokens.
  """
  distort = config.augment.photometric
  match recipes.task(config):
    case 'detection':
      return functools.partial(_with_objects, info, distort)
    case 'segmentation':
      return functools.partial(_with_pixels, info, distort)
  if config.token_label_weight:
    stride = model.arch.stride
    token_labels.extents(info.image_size, stride)  # a check
    return functools.partial(_with_tokens, config, info, stride)
  return functools.partial(_with_classes, config, info, schedule)


def _with_classes(config, info, schedule, key, batch, step):
  """Returns augmented and mixed images, and their soft targets."""
  return augment_lib.augment(
      key,
      batch['image'],
      batch['label'],
      config.augment,
      mean=info.mean,
      std=info.std,
      num_classes=len(info.class_names),
      smoothing=config.label_smoothing,
      mixing=step < schedule.mixed_steps,
  )


def _with_tokens(config, info, stride, key, batch, step):
  """Returns augmented images, and targets of images and of their tokens."""
  del step
  image, flipped, _ = augment_lib.augment_images(
      key, batch['image'], config.augment, mean=info.mean, std=info.std
  )
  whole = token_labels.spread(
      batch['map_index'],
      batch['map_score'],
      num_classes=len(info.class_names),
  )
  # Without boxes, the images are whole.
  uncut = jnp.tile(jnp.array([[0.0, 0.0, 1.0, 1.0]]), (len(image), 1))
  return image, token_labels.targets(
      whole,
      batch.get('box', uncut),
      flipped,
      extents=token_labels.extents(image.shape[1:3], stride),
      smoothing=config.label_smoothing,
  )


def _with_pixels(info, distort, key, batch, step):
  """Returns images and labels; decoding has already cropped and flipped."""
  del step
  image = _padded_images(info, distort, key, batch)
  return image, batch['label'].astype(jnp.int32)


def _with_objects(info, distort, key, batch, step):
  """Returns images and their objects; decoding has already flipped them."""
  del step
  image = _padded_images(info, distort, key, batch)
  truth = assignment.Truth(
      batch['boxes'], batch['labels'], batch['valid'], batch.get('bitmaps')
  )
  return image, {'extents': batch['extents'], 'truth': truth}


def _padded_images(info, distort, key, batch):
  """Distorts and normalises images, then pads them with zeros.

  This is the order of mmsegmentation and mmdetection.
  """
  image = batch['image']
  if distort:
    how = photometric.draw(key, len(image))
    image = photometric.distort(image.astype(jnp.float32), how)
  image = augment_lib.normalize(image, mean=info.mean, std=info.std)
  return padding.fill(image, batch['extents'])
