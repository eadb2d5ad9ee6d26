"""From a recipe's `data` fields to records, and what a run's images are."""

import dataclasses
import json
import math
import pathlib

import ml_collections

from gswinrmt_jax.data import cropped, datasets, pictures, pipeline
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import run_folder

_FILE = 'data.json'
_TRAIN_CROPS = ('resize', 'random_resized')


@dataclasses.dataclass(frozen=True)
class Seen:
  """What a run's weights were made for; `RUN/data.json`.

  Attributes:
    info: Of the data set, with the size that the model sees.
    crop: Part of the resized image that evaluation keeps, as `pictures.fit`
      has it.
  """

  info: datasets.Info
  crop: float = 1.0

  def write(self, folder: pathlib.Path) -> None:
    """Writes it into a run folder.

    Raises:
      UserError: If the run was begun on other data.
    """
    path = folder / _FILE
    fields = {**dataclasses.asdict(self.info), 'crop': self.crop}
    fields = json.loads(json.dumps(fields))  # JSON knows no tuples.
    if path.exists():
      differing = [
          name
          for name, value in json.loads(path.read_text()).items()
          if value != fields.get(name)
      ]
      if differing:
        raise UserError(
            f'{self.info.name} is not what {folder} was begun on: '
            f'{", ".join(differing)} in {_FILE} differ'
        )
    run_folder.write_json(path, fields)


def seen(folder: pathlib.Path, recipe: ml_collections.ConfigDict) -> Seen:
  """Returns what a run's weights were made for; the data need not be there.

  Raises:
    UserError: If nobody wrote it down and the data are not known.
  """
  path = folder / _FILE
  if not path.exists():  # a run of before there was one
    return Seen(datasets.info(recipe.data.name, recipe.data.dir))
  try:
    fields = json.loads(path.read_text())
    crop = fields.pop('crop')
    for name in ('class_names', 'mean', 'std', 'image_size'):
      fields[name] = tuple(fields[name])
    return Seen(datasets.Info(**fields), crop)
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise UserError(f'{path} cannot be read: {error}') from error


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the fields that say how images are read.

  Raises:
    UserError: If a value is out of range, or two contradict each other.
  """
  data = config.data
  for name in ('image_size', 'workers'):
    if data[name] < 0:
      raise UserError(f'config.data.{name} is {data[name]}: must be at least 0')
  if data.storage not in datasets.STORAGES:
    raise UserError(
        f"config.data.storage is '{data.storage}': must be one of "
        f'{", ".join(datasets.STORAGES)}'
    )
  if not 0 <= data.eval_crop <= 1:  # Written so that NaN is out of range too.
    raise UserError(
        f'config.data.eval_crop is {data.eval_crop}: must be from 0 to 1'
    )
  if data.eval_crop and not data.image_size:
    raise UserError('config.data.eval_crop needs config.data.image_size')
  if data.train_crop not in _TRAIN_CROPS:
    raise UserError(
        f"config.data.train_crop is '{data.train_crop}': must be "
        f'{" or ".join(_TRAIN_CROPS)}'
    )
  if data.train_crop == 'random_resized':
    _check_random_crop(data)
  # In smaller batches copies of an image could be Mixup's partners.
  if not 1 <= data.repeats <= max(1, config.batch_size // 3):
    raise UserError(
        f'config.data.repeats is {data.repeats}: must be from 1 to a third '
        f'of config.batch_size, {config.batch_size}'
    )


def _check_random_crop(data):
  if data.storage != 'decode' or not data.image_size:
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
) -> pipeline.Records | cropped.Cropped:
  """Returns the training records of a recipe."""
  data, how = config.data, {'crop': 0.0}
  if data.train_crop == 'random_resized':
    how['random_crop'] = pictures.RandomCrop(data.crop_scale, data.crop_ratio)
  return _load(config, data.train_split, **how)


def load_eval(
    config: ml_collections.ConfigDict, split: str
) -> pipeline.Records:
  """Returns the records of a split as a recipe's evaluation sees them."""
  return _load(config, split, crop=config.data.eval_crop)


def check_test(config: ml_collections.ConfigDict) -> None:
  """Refuses to begin a run that could not be tested at its end.

  Raises:
    UserError: If the data set has no such test split.
  """
  data = config.data
  try:
    datasets.open_source(data.name, data.test_split, data.dir)
  except UserError as error:
    raise UserError(f'config.data.test_split: {error}') from error


def check_sizes(
    config: ml_collections.ConfigDict,
    train: pipeline.Records | cropped.Cropped,
    val: pipeline.Records,
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
  return datasets.load(
      data.name,
      split,
      data.dir,
      image_size=size,
      storage=data.storage,
      workers=data.workers,
      **how,
  )
