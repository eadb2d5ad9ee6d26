"""The data sets by name: what they are, and their records as arrays."""

from collections.abc import Callable
import dataclasses
import difflib
import io

import numpy as np

from gswinrmt_jax.data import cifar10, digits
from gswinrmt_jax.errors import UserError

_CHUNK = 2000  # records fetched at a time, a few megabytes


@dataclasses.dataclass(frozen=True)
class Info:
  """What is known of a data set before a record is read.

  Attributes:
    name: As the config's `data.name` has it.
    class_names: By label.
    mean: Per channel, of pixels / 255 of the train split.
    std: Likewise.
    image_size: Height and width.
  """

  name: str
  class_names: tuple[str, ...]
  mean: tuple[float, float, float]
  std: tuple[float, float, float]
  image_size: tuple[int, int] = (32, 32)


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
  """The records of a split, decoded.

  Attributes:
    image: uint8 [n h w 3].
    label: int32 [n].
  """

  image: np.ndarray
  label: np.ndarray

  def __len__(self) -> int:
    return len(self.label)


@dataclasses.dataclass(frozen=True)
class _DataSet:
  info: Info
  read: Callable[[str, str], tuple[np.ndarray, np.ndarray]]
  is_prepared: Callable[[str], bool]
  prepare: Callable[[str, str | None], object]


def _read_cifar10(split: str, data_dir: str) -> tuple[np.ndarray, np.ndarray]:
  import PIL.Image
  import tensorflow_datasets as tfds

  builder = cifar10.open_prepared(data_dir)
  if builder is None:
    raise UserError(
        f'cifar10 is not prepared in {cifar10.dataset_dir(data_dir)}; run '
        '`gswinrmt prepare cifar10`'
    )
  # Decoded here: TFDS takes half as long again and warns about OpenCV.
  skip = {'image': tfds.decode.SkipDecoding()}
  try:
    source = builder.as_data_source(split, decoders=skip)
  except (ValueError, AssertionError) as error:
    raise UserError(
        f'cifar10 has no split {split!r}, or it is empty: use train, test or '
        "slices of them such as 'train[:45000]' or 'train[90%:]+test'"
    ) from error
  image = np.empty((len(source), 32, 32, 3), np.uint8)
  label = np.empty(len(source), np.int32)
  try:
    for start in range(0, len(source), _CHUNK):
      rows = range(start, min(start + _CHUNK, len(source)))
      for row, record in zip(rows, source.__getitems__(rows), strict=True):
        image[row] = PIL.Image.open(io.BytesIO(record['image']))
        label[row] = record['label']
  except (RuntimeError, ValueError, OSError) as error:
    reason = str(error).split('\n')[0]
    raise UserError(
        f'{builder.data_path} is damaged ({reason}); remove that directory '
        'and run `gswinrmt prepare cifar10`'
    ) from error
  return image, label


def _say_digits_ship(data_dir: str, archive: str | None) -> None:
  del data_dir, archive
  print('digits: ships with this package, nothing to prepare')


_DATA_SETS = {
    'digits': _DataSet(
        info=Info('digits', digits.CLASSES, digits.MEAN, digits.STD),
        read=lambda split, data_dir: digits.read(split),
        is_prepared=lambda data_dir: True,
        prepare=_say_digits_ship,
    ),
    'cifar10': _DataSet(
        info=Info('cifar10', cifar10.CLASSES, cifar10.MEAN, cifar10.STD),
        read=_read_cifar10,
        is_prepared=cifar10.is_prepared,
        prepare=cifar10.prepare,
    ),
}
NAMES = tuple(_DATA_SETS)


def info(name: str) -> Info:
  """Returns what is known of the data set; UserError for an unknown name."""
  return _find(name).info


def load(name: str, split: str, data_dir: str = '') -> Arrays:
  """Returns a split of a prepared data set, decoded once to memory.

  Args:
    name: One of `NAMES`.
    split: For digits train, val or test; for cifar10 any of TFDS's slices of
      train and test, such as 'train[:45000]'.
    data_dir: The TFDS data directory; empty for TFDS_DATA_DIR or, without
      that, TFDS's own default. Digits need none.

  Returns:
    The records, in the data set's own order.

  Raises:
    UserError: If the name or split is unknown, or the data are missing, half
      written or corrupt.
  """
  return Arrays(*_find(name).read(split, data_dir))


def is_prepared(name: str, data_dir: str = '') -> bool:
  """Returns whether `load` will find the data; UserError if half written."""
  return _find(name).is_prepared(data_dir)


def prepare(name: str, data_dir: str = '', archive: str | None = None) -> None:
  """Prepares the data set below `data_dir`, or says that there is no need.

  Args:
    name: One of `NAMES`.
    data_dir: As in `load`.
    archive: A local copy of what would be downloaded.

  Raises:
    UserError: If it cannot be done; nothing is left behind.
  """
  _find(name).prepare(data_dir, archive)


def ensure(name: str, data_dir: str = '') -> None:
  """Prepares the data set if it is missing, and is silent if it is not."""
  if not is_prepared(name, data_dir):
    prepare(name, data_dir)


def _find(name: str) -> _DataSet:
  if name in _DATA_SETS:
    return _DATA_SETS[name]
  near = difflib.get_close_matches(name, NAMES, n=1)
  hint = f'did you mean {near[0]}?' if near else f'known: {", ".join(NAMES)}'
  raise UserError(f'unknown data set {name!r}; {hint}')
