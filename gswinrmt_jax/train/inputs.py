"""From a recipe's `data` fields to records."""

import math

import ml_collections

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, pictures
from gswinrmt_jax.errors import UserError

# 'device' and 'auto' are in memory first: `resident` takes them from there.
STORAGES = (*datasets.STORAGES, 'device', 'auto')
_TRAIN_CROPS = ('resize', 'random_resized')
_LEAST_CROP = 0.1  # An image is resized to the size divided by it.


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the fields that say how images are read.

  Raises:
    UserError: If a value is out of range, or two contradict each other.
  """
  data = config.data
  for name in ('image_size', 'workers'):
    if data[name] < 0:
      raise UserError(f'config.data.{name} is {data[name]}: must be at least 0')
  if data.storage not in STORAGES:
    raise UserError(
        f"config.data.storage is '{data.storage}': must be one of "
        f'{", ".join(STORAGES)}'
    )
  # Written so that NaN is out of range too.
  if data.eval_crop and not _LEAST_CROP <= data.eval_crop <= 1:
    raise UserError(
        f'config.data.eval_crop is {data.eval_crop}: must be 0, or from '
        f'{_LEAST_CROP} to 1'
    )
  if data.eval_crop and not data.image_size:
    raise UserError('config.data.eval_crop needs config.data.image_size')
  if data.train_crop not in _TRAIN_CROPS:
    raise UserError(
        f"config.data.train_crop is '{data.train_crop}': must be "
        f'{" or ".join(_TRAIN_CROPS)}'
    )
  _check_random_crop(data)
  # In smaller batches copies of an image could be Mixup's partners.
  if not 1 <= data.repeats <= max(1, config.batch_size // 3):
    raise UserError(
        f'config.data.repeats is {data.repeats}: must be from 1 to a third '
        f'of config.batch_size, {config.batch_size}'
    )


def _check_random_crop(data):
  drawn = data.train_crop == 'random_resized'
  if drawn and (data.storage != 'decode' or not data.image_size):
    raise UserError(
        'config.data.train_crop=random_resized needs config.data.storage='
        'decode and config.data.image_size'
    )
  for name, most in (('crop_scale', 1), ('crop_ratio', math.inf)):
    bounds = data[name]
    if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1] <= most:
      raise UserError(
          f'config.data.{name} is {bounds}: must be two numbers above 0, the '
          f'first not above the second{", which is not above 1" * (most == 1)}'
      )


def crop(config: ml_collections.ConfigDict) -> float:
  """Returns the crop that the weights of a run are evaluated with.

  Images that are trained on as they are stored say nothing of another shape:
  then the middle is kept.
  """
  return config.data.eval_crop if config.data.image_size else 1.0


def load_train(
    config: ml_collections.ConfigDict,
) -> batches_lib.Records | batches_lib.Cropped:
  """Returns the training records of a recipe."""
  data, how = config.data, {'crop': 0.0}
  if data.train_crop == 'random_resized':
    how['random_crop'] = pictures.RandomCrop(data.crop_scale, data.crop_ratio)
  return _load(config, data.train_split, **how)


def load_eval(
    config: ml_collections.ConfigDict, split: str
) -> batches_lib.Records:
  """Returns the records of a split as a recipe's evaluation sees them."""
  return _load(config, split, crop=config.data.eval_crop)


def check_test(config: ml_collections.ConfigDict) -> None:
  """Refuses to begin a run that could not be tested at its end.

  Raises:
    UserError: If the data set has no such test split.
  """
  data = config.data
  if not data.test_split:
    return
  try:
    datasets.open_source(data.name, data.test_split, data.dir)
  except UserError as error:
    raise UserError(f'config.data.test_split: {error}') from error


def check_sizes(
    config: ml_collections.ConfigDict,
    train: batches_lib.Records | batches_lib.Cropped,
    val: batches_lib.Records,
) -> None:
  """Refuses to validate at another size than is trained at.

  Raises:
    UserError: If the images of the two are of different sizes.
  """
  if train.image_shape != val.image_shape:
    sizes = [
        f'{records.image_shape[1]} x {records.image_shape[0]}'
        for records in (train, val)
    ]
    raise UserError(
        f'{config.data.train_split} has images of {sizes[0]} pixels, '
        f'{config.data.val_split} of {sizes[1]}: set config.data.image_size'
    )


def _load(config, split, **how):
  data = config.data
  size = (data.image_size,) * 2 if data.image_size else None
  stored = data.storage in datasets.STORAGES
  storage = data.storage if stored else 'memory'
  return datasets.load(
      data.name,
      split,
      data.dir,
      image_size=size,
      storage=storage,
      workers=data.workers,
      **how,
  )
