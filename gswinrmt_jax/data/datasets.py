"""The data sets by name: what they are, and their records."""

from collections.abc import Callable
import dataclasses
import difflib

from gswinrmt_jax.data import (
    cache,
    cifar10,
    cropped,
    digits,
    imagenet,
    pictures,
    prepared,
    records,
    sources,
    tfds_sets,
)
from gswinrmt_jax.errors import UserError

STORAGES = ('memory', 'disk', 'decode')


@dataclasses.dataclass(frozen=True)
class Info:
  """What is known of a data set before a record is read.

  Attributes:
    name: As the config's `data.name` has it.
    class_names: By label.
    mean: Per channel, of pixels / 255 of the train split; ImageNet's for
      images of one's own.
    std: Likewise.
    image_size: Height and width as stored; zeros where they may differ.
  """

  name: str
  class_names: tuple[str, ...]
  mean: tuple[float, float, float]
  std: tuple[float, float, float]
  image_size: tuple[int, int] = (32, 32)


@dataclasses.dataclass(frozen=True)
class _DataSet:
  info: Info
  open: Callable[[str, str], sources.Source]
  is_prepared: Callable[[str], bool]
  prepare: Callable[[str, str | None], object]


def _open_digits(split: str, data_dir: str) -> sources.ArraySource:
  del data_dir
  return sources.ArraySource(*digits.read(split))


def _open_cifar10(split: str, data_dir: str) -> sources.TfdsSource:
  builder = cifar10.open_prepared(data_dir)
  if builder is None:
    raise UserError(
        f'cifar10 is not prepared in {cifar10.dataset_dir(data_dir)}; run '
        '`gswinrmt prepare cifar10`'
    )
  mend = 'remove that directory and run `gswinrmt prepare cifar10`'
  return sources.TfdsSource(builder, split, mend)


def _say_digits_ship(data_dir: str, archive: str | None) -> None:
  del data_dir, archive
  print('digits: ships with this package, nothing to prepare')


_DATA_SETS = {
    'digits': _DataSet(
        info=Info('digits', digits.CLASSES, digits.MEAN, digits.STD),
        open=_open_digits,
        is_prepared=lambda data_dir: True,
        prepare=_say_digits_ship,
    ),
    'cifar10': _DataSet(
        info=Info('cifar10', cifar10.CLASSES, cifar10.MEAN, cifar10.STD),
        open=_open_cifar10,
        is_prepared=cifar10.is_prepared,
        prepare=cifar10.prepare,
    ),
}
NAMES = tuple(_DATA_SETS)


def info(name: str, data_dir: str = '') -> Info:
  """Returns what is known of a data set.

  Args:
    name: One of `NAMES`, or of a data set prepared below `data_dir`.
    data_dir: As in `load`.

  Raises:
    UserError: If there is no such data set; names those that there are.
  """
  if name in _DATA_SETS:
    return _DATA_SETS[name].info
  builder = tfds_sets.open_builder(name, data_dir)
  if builder is None:
    raise _unknown(name, data_dir)
  features = builder.info.features
  return Info(
      name=name,
      class_names=tuple(features['label'].names),
      mean=imagenet.MEAN,
      std=imagenet.STD,
      image_size=tuple(side or 0 for side in features['image'].shape[:2]),
  )


def load(
    name: str,
    split: str,
    data_dir: str = '',
    *,
    image_size: tuple[int, int] | None = None,
    crop: float = 0.0,
    storage: str = 'memory',
    workers: int = 0,
    random_crop: pictures.RandomCrop | None = None,
) -> records.Arrays | records.Decoded | cropped.Cropped:
  """Returns a split of a prepared data set as images of one size.

  Args:
    name: As in `info`.
    split: For digits train, val or test; otherwise any of TFDS's slices of the
      data set's splits, such as 'train[:45000]'.
    data_dir: The TFDS data directory; empty for TFDS_DATA_DIR or, without
      that, TFDS's own default. Digits need none.
    image_size: Height and width that images are brought to; None keeps them as
      they are stored, all of one size.
    crop: Part of the resized image that is kept, as `pictures.fit` has it.
    storage: One of `STORAGES`, 'memory' and 'disk' decoding once; the images
      are the same. Digits, which are small, are in memory anyway.
    workers: Processes that decode, where storage is 'decode'.
    random_crop: What to draw of each image, each time; needs the storage
      'decode' and an image size.

  Returns:
    The records, in the data set's own order.

  Raises:
    UserError: If the name or split is unknown, or the data are missing, half
      written or corrupt.
  """
  if storage not in STORAGES:
    raise UserError(
        f'unknown storage {storage!r}: must be one of {", ".join(STORAGES)}'
    )
  source = open_source(name, split, data_dir)
  if random_crop is not None:
    return cropped.Cropped(source, image_size, random_crop, workers)
  decoded = records.Decoded(source, image_size, crop, workers)
  if storage == 'decode':
    return decoded
  if storage == 'disk' and isinstance(source, sources.TfdsSource):
    return cache.load(decoded)
  return records.to_memory(decoded)


def open_source(name: str, split: str, data_dir: str = '') -> sources.Source:
  """Returns the records of a split as they are stored; prepares nothing.

  Args:
    name: As in `info`.
    split: As in `load`.
    data_dir: As in `load`.

  Raises:
    UserError: As `load`.
  """
  if name in _DATA_SETS:
    return _DATA_SETS[name].open(split, data_dir)
  source = tfds_sets.open_split(name, split, data_dir)
  if source is None:
    raise _unknown(name, data_dir)
  return source


def is_prepared(name: str, data_dir: str = '') -> bool:
  """Returns whether `load` will find the data; UserError if half written."""
  if name in _DATA_SETS:
    return _DATA_SETS[name].is_prepared(data_dir)
  return tfds_sets.open_builder(name, data_dir) is not None


def prepare(name: str, data_dir: str = '', archive: str | None = None) -> None:
  """Prepares the data set below `data_dir`, or says that there is no need.

  Args:
    name: One of `NAMES`.
    data_dir: As in `load`.
    archive: A local copy of what would be downloaded.

  Raises:
    UserError: If it cannot be done; nothing is left behind.
  """
  if name not in _DATA_SETS:
    raise _unknown(name, data_dir)
  _DATA_SETS[name].prepare(data_dir, archive)


def ensure(name: str, data_dir: str = '') -> None:
  """Prepares the data set if it is missing, and is silent if it is not."""
  if not is_prepared(name, data_dir):
    prepare(name, data_dir)


def _unknown(name: str, data_dir: str) -> UserError:
  root = prepared.data_root(data_dir)
  if name in ('imagenet', 'mini_imagenet'):
    how = f'{prepared.command(name)} --images DIR'
    return UserError(f'{name} is not prepared in {root}; run `{how}`')
  own = tfds_sets.names(data_dir)
  near = difflib.get_close_matches(name, [*NAMES, *own], n=1)
  hint = f'; did you mean {near[0]}?' if near else ''
  there = ', '.join(own) or 'none'
  return UserError(
      f'unknown data set {name!r}{hint} (built in: {", ".join(NAMES)}; in '
      f'{root}: {there})'
  )
