"""Stored records in a fixed order: what a source is, and prepared data sets.

Sources of other kinds: `records.Arrays` and `detection.Scenes` in memory,
`class_folders.FolderSource` of images that are not prepared,
`segmentation.SegmentationSource`, `detection.ObjectSource`.
"""

import abc
from collections.abc import Iterable, Iterator
import hashlib
import pathlib
from typing import Any

import numpy as np
import PIL.Image

from gswinrmt_jax import files
from gswinrmt_jax.data import pictures, prepared
from gswinrmt_jax.errors import UserError

_SAMPLED = 1000  # records that a checksum reads; reading all takes minutes


class Source(abc.ABC):
  """The records of a split in their stored order.

  In Grain's terms a `RandomAccessDataSource`: `grain.MapDataset.source` takes
  it. A source of one's own is a subclass with `__len__` and `__getitem__`. The
  other methods follow from these; sources that can answer with less reading
  define them anew.

  Attributes:
    version: Version of the data set; '' if it has none.
    split: The requested split or slices.
    label_checksum: Checksum of all labels where `stored` leaves them out.
  """

  version: str = ''
  split: str = ''
  label_checksum: str = ''

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of records."""

  @abc.abstractmethod
  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Any]:
    """Returns image (RGB) and label of a record.

    The label is a class, for segmentation uint8 `[h w]` (the class of each
    pixel, or `pictures.VOID`), for detection `detection.Objects`.

    Raises:
      UserError: If the record is damaged; the message names it.
    """

  def described(self) -> Iterator[tuple[tuple[int, int], Any]]:
    """Yields (width, height) and label of all records."""
    for row in range(len(self)):
      image, label = self[row]
      yield image.size, label

  def sizes(self) -> Iterator[tuple[int, int]]:
    """Yields width and height of all records."""
    return (size for size, _ in self.described())

  def name(self, row: int) -> str:
    """Returns a record's name for messages."""
    return f'record {row}'

  def key(self, row: int) -> str:
    """Returns what identifies a record: its file name, id or a checksum."""
    return checksum([self.stored(row)])

  def stored(self, row: int) -> bytes:
    """Returns a record's image and label as they are stored."""
    image, label = self[row]
    return image.tobytes() + _bytes(label)

  def order_checksum(self) -> str:
    """Returns a checksum of the records and their order.

    It is the SHA-256 of `ROW TAB KEY NEWLINE` for the rows `floor(i n / 1000)`,
    or for all if there are fewer.
    """
    rows = self._sampled()
    return checksum(f'{row}\t{self.key(row)}\n'.encode() for row in rows)

  def content_checksum(self) -> str:
    """Returns a checksum of `stored`, of the rows of `order_checksum`."""
    return checksum(map(self.stored, self._sampled()))

  def _sampled(self):
    count = len(self)
    rows = min(count, _SAMPLED)
    return [index * count // rows for index in range(rows)]

  def cache_folders(self) -> list[pathlib.Path]:
    """Returns where decoded images may be kept, the best place first."""
    return [files.user_cache() / type(self).__name__]

  def fingerprint(self) -> str:
    """Returns a hash that changes when any record does."""
    return checksum(map(self.stored, range(len(self))))


def checksum(parts: Iterable[bytes]) -> str:
  """Returns the SHA-256 of all parts, one after another."""
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part)
  return digest.hexdigest()


def _bytes(label):
  if isinstance(label, tuple):  # as `detection.Objects`
    return b''.join(map(_bytes, label))
  return b'' if label is None else np.asarray(label).tobytes()


class TfdsSource(Source):
  """A split of a prepared TFDS data set, with encoded images.

  Attributes:
    feature: Name of the feature that is the label.
    folder: The data set's directory.
    split: The requested split or slices.
    places: The ranges of the split in the files of records, TFDS's
      `FileInstruction`.
    version: Version of the data set.
  """

  feature = 'label'

  def __init__(self, builder: Any, split: str):
    """Opens a split, or slices such as 'train[:90%]'.

    Raises:
      UserError: If there is no such split; the message lists the existing ones.
    """
    import tensorflow_datasets as tfds

    # Every file that is read stays open; a run opens its splits twice.
    splits = builder.info.splits.values()
    files.allow_open(2 * sum(each.num_shards for each in splits))
    self.folder = pathlib.Path(builder.data_path)
    self._dataset, self.split = self.folder.parent.name, split
    self.version = str(builder.info.version)
    # Decoded here: TFDS takes half as long again, warns about OpenCV and
    # mistakes palette indices for grey levels.
    features = builder.info.features
    skip = {
        name: tfds.decode.SkipDecoding()
        for name, feature in features.items()
        if isinstance(feature, tfds.features.Image)
    }
    if any(features[name].np_dtype == np.float32 for name in skip):
      raise UserError(
          f'{builder.data_path} has images of float32, whose PNG files hold '
          'bits, not pixels: store uint8 or uint16'
      )
    try:
      self._records = builder.as_data_source(split, decoders=skip)
      self._count = len(self._records)
      self.places = builder.info.splits[split].file_instructions
    # NotImplementedError: a slice of 'all'
    except (ValueError, AssertionError, NotImplementedError) as error:
      raise no_split(builder.name, split, builder.info.splits) from error
    self._classes = features[self.feature].num_classes

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Any]:
    record = self._record(row)
    name = self._name(row, record)
    label = self._read_label(record, name)
    return pictures.decode(record['image'], name), label

  def name(self, row: int) -> str:
    """Returns data set, row and split of a record, and any file name."""
    return self._name(row, self._record(row))

  def key(self, row: int) -> str:
    """Returns the file name or id, else the encoded image's SHA-256."""
    record = self._record(row)
    return _file(record) or checksum([record['image']])

  def stored(self, row: int) -> bytes:
    """Returns the encoded image and its label."""
    record = self._record(row)
    return record['image'] + b'%d' % record[self.feature]

  def cache_folders(self) -> list[pathlib.Path]:
    """Returns the folder `decoded` beside the records, and the user's cache."""
    own = files.user_cache() / self.folder.parent.name
    return [self.folder / 'decoded', own]

  def fingerprint(self) -> str:
    """Returns a hash that changes when the data set is rewritten."""
    said = [f'{self.folder.name} {self.split}']
    for path in sorted(self.folder.glob('*.array_record*')):
      stat = path.stat()
      said.append(f'{path.name} {stat.st_size} {stat.st_mtime_ns}')
    return checksum(map(str.encode, said))

  def _record(self, row):
    try:
      return self._records[int(row)]
    except (RuntimeError, ValueError, OSError) as error:
      reason = str(error).split('\n')[0]
      raise UserError(
          f'{self.folder} cannot be read ({reason}): if it is damaged, '
          f'{prepared.AGAIN}'
      ) from error

  def _name(self, row, record):
    name = f'{self._dataset}: record {row} of {self.split!r}'
    file = _file(record)
    return f'{name} ({file})' if file else name

  def _read_label(self, record, name):
    if not 0 <= record[self.feature] < self._classes:
      raise UserError(f'{name} has an invalid label, {record[self.feature]}')
    return int(record[self.feature])


def no_split(name: str, split: str, known: Iterable[str]) -> UserError:
  """Returns the error for a split that a data set does not have."""
  return UserError(
      f'{name} has no split {split!r}, or it is empty: use '
      f"{' or '.join(known)}, or slices of them such as 'train[:90%]'"
  )


def _file(record):
  """Returns a record's file name or id, '' if it has neither."""
  file = record.get('file_name', record.get('id'))
  if not isinstance(file, bytes):
    return ''
  # Other writers may let invalid UTF-8 through: escaped, names stay distinct.
  return file.decode(errors='backslashreplace')
