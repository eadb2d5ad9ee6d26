"""Stored records in a fixed order: TFDS data sets on disk, and arrays.

`class_folders.FolderSource` reads images that are not prepared.
"""

from collections.abc import Iterable, Iterator
import dataclasses
import hashlib
import io
import os
import pathlib
import re
from typing import Any, Protocol

import numpy as np
import PIL.Image

from gswinrmt_jax.data import pictures
from gswinrmt_jax.errors import UserError

_SAMPLED = 1000  # records that a checksum reads; reading all takes minutes
_MASK = 'segmentation_mask'
_VERSION = re.compile(r'\d+\.\d+\.\d+')
# Data sets that `gswinrmt prepare NAME` writes; others need a kind and a name.
PREPARED_BY_NAME = ('cifar10', 'imagenet', 'mini_imagenet')


def data_root(data_dir: str) -> pathlib.Path:
  """Returns the TFDS data directory; by default TFDS_DATA_DIR or TFDS's own."""
  root = data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  return pathlib.Path(root).expanduser().absolute()


def names(data_dir: str) -> list[str]:
  """Returns the names of the data sets prepared in a data directory."""
  root = data_root(data_dir)
  if not root.is_dir():
    return []
  found = (path.name for path in root.iterdir() if path.name[0] != '.')
  return sorted(name for name in found if _versions(root / name))


def open_newest(name: str, data_dir: str) -> Any | None:
  """Returns the TFDS builder of the newest version, or None if there is none.

  Raises:
    UserError: As in `open_version`, or if neither images nor pixels are
      labelled with two or more classes.
  """
  folder = data_root(data_dir) / name
  plain = re.fullmatch(r'\w[\w.-]*', name)
  versions = _versions(folder) if plain else []
  if not versions:
    return None
  builder = open_version(folder / versions[-1])
  path, features = builder.data_path, dict(builder.info.features.items())
  label = _MASK if task(builder) == 'segmentation' else 'label'
  classes = getattr(features.get(label), 'num_classes', None) or 0
  if 'image' not in features or classes < 2:
    raise UserError(
        f'{path} holds {", ".join(sorted(features))} and {classes} classes: '
        'classification needs image and a label of two or more classes, '
        f'segmentation image and {_MASK}'
    )
  return builder


def task(builder: Any) -> str:
  """Returns the task of a data set: 'classification' or 'segmentation'."""
  # In some TFDS data sets, images have a class and masks have none.
  mask = dict(builder.info.features.items()).get(_MASK)
  named = getattr(mask, 'num_classes', None)
  return 'segmentation' if named else 'classification'


def open_version(folder: pathlib.Path) -> Any | None:
  """Returns the TFDS builder of DIR/NAME/VERSION, or None if it is missing.

  Raises:
    UserError: If it is half written or damaged, or its files are not
      array_record, which alone can be read without TensorFlow.
  """
  import tensorflow_datasets as tfds

  if not folder.exists():
    return None
  try:
    builder = tfds.builder_from_directory(folder)
    missing = [
        path.name
        for split in builder.info.splits.values()
        for path in split.filepaths
        if not path.exists()
    ]
  except Exception as error:
    # TFDS raises many types for a missing or broken description.
    missing = [str(error).strip().split('\n')[0] or type(error).__name__]
  if missing:
    raise UserError(
        f'{folder} is half written or damaged ({missing[0]}); {_again(folder)}'
    )
  if builder.info.file_format.value != 'array_record':
    raise UserError(
        f'{folder} holds {builder.info.file_format.value} files, which only '
        'TensorFlow reads; choose another directory with --dir, '
        '--config.data.dir or TFDS_DATA_DIR and prepare there'
    )
  return builder


def _again(folder):
  name = folder.parent.name
  # Among custom data sets, only those for segmentation have metadata.
  if name in PREPARED_BY_NAME or (folder / 'metadata.json').exists():
    command = prepare_command(name, folder.parent.parent)
    return f'remove that directory and run `{command}`'
  return (
      'remove that directory and train on your images where they are, with '
      '--config.data.name=DIR'
  )


def prepare_command(name: str, root: pathlib.Path) -> str:
  """Returns the command that writes a data set below `root`."""
  words = ['gswinrmt prepare', name]
  if name not in PREPARED_BY_NAME:
    words = ['gswinrmt prepare segmentation', name]
  if name != 'cifar10':
    words.append('--images DIR')
  if name not in PREPARED_BY_NAME:
    words.append('--labels DIR')
  if root != data_root(''):
    words.append(f'--dir {root}')
  return ' '.join(words)


def _versions(folder):
  """Returns the versions in a data set's folder, the newest last."""
  found = (path.parent.name for path in folder.glob('*.*.*/dataset_info.json'))
  versions = [name for name in found if _VERSION.fullmatch(name)]
  return sorted(versions, key=lambda v: [int(part) for part in v.split('.')])


class Source(Protocol):
  """The records of a split in their stored order.

  In Grain's terms a `RandomAccessDataSource`: `grain.MapDataset.source` takes
  it.

  Attributes:
    version: Version of the data set; '' if it has none.
  """

  version: str

  def __len__(self) -> int:
    """Returns the number of records."""

  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Any]:
    """Returns image and label of a record, decoded.

    The label is a class or, for segmentation, uint8 `[h w]`: the class of each
    pixel, or `pictures.VOID`.

    Raises:
      UserError: If the record is damaged; the message names it.
    """

  def name(self, row: int) -> str:
    """Returns a record's name for messages."""

  def key(self, row: int) -> str:
    """Returns what identifies a record: its file name, id or a checksum."""

  def stored(self, row: int) -> bytes:
    """Returns a record's image and label as they are stored."""


def sampled(source: Source) -> list[int]:
  """Returns the rows `floor(i n / 1000)`, or all if there are fewer."""
  count = len(source)
  rows = min(count, _SAMPLED)
  return [index * count // rows for index in range(rows)]


def order_checksum(source: Source) -> str:
  """Returns a checksum of the records and their order.

  It is the SHA-256 of `ROW TAB KEY NEWLINE` for the rows of `sampled`.
  """
  digest = hashlib.sha256()
  for row in sampled(source):
    digest.update(f'{row}\t{source.key(row)}\n'.encode())
  return digest.hexdigest()


def content_checksum(source: Source) -> str:
  """Returns a checksum of images and labels as they are stored.

  It covers the rows of `sampled`; in memory all images, and all labels there
  and in class folders.
  """
  digest = hashlib.sha256()
  in_memory = isinstance(source, ArraySource)
  for row in range(len(source)) if in_memory else sampled(source):
    digest.update(source.stored(row))
  digest.update(np.asarray(getattr(source, 'label', ()), np.int32).tobytes())
  return digest.hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySource:
  """Records in memory that belong to no prepared data set.

  Attributes:
    image: uint8 `[n h w 3]`.
    label: int32 `[n]`, or per pixel, uint8 `[n h w]`.
  """

  image: np.ndarray
  label: np.ndarray

  version = ''

  def __len__(self) -> int:
    return len(self.label)

  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Any]:
    return PIL.Image.fromarray(self.image[row]), self.label[row]

  def name(self, row: int) -> str:
    """Returns a record's name for messages."""
    return f'record {row}'

  def key(self, row: int) -> str:
    """Returns the SHA-256 of the pixels, as records have no names."""
    return _hash(self.image[row].tobytes())

  def stored(self, row: int) -> bytes:
    """Returns the pixels."""
    return self.image[row].tobytes()

  def sizes(self) -> list[tuple[int, int]]:
    """Returns the width and height of all records: one pair, in a list."""
    return [self.image.shape[2:0:-1]]

  def labels(self) -> np.ndarray:
    """Returns the labels of all records."""
    return self.label


class TfdsSource:
  """A split of a prepared TFDS data set, with encoded images.

  Attributes:
    folder: The data set's directory.
    split: The requested split or slices.
    version: Version of the data set.
  """

  _label = 'label'

  def __init__(self, builder: Any, split: str):
    """Opens a split, or slices such as 'train[:90%]'.

    Raises:
      UserError: If there is no such split; the message lists the existing ones.
    """
    import tensorflow_datasets as tfds

    self.folder = pathlib.Path(builder.data_path)
    self.split = split
    self.version = str(builder.info.version)
    # Decoded here: TFDS takes half as long again, warns about OpenCV and
    # mistakes palette indices for grey levels.
    features = builder.info.features
    skip = {
        name: tfds.decode.SkipDecoding()
        for name in ('image', _MASK)
        if name in features
    }
    try:
      self._records = builder.as_data_source(split, decoders=skip)
      self._count = len(self._records)
    except (ValueError, AssertionError) as error:
      raise no_split(builder.name, split, builder.info.splits) from error
    self._classes = features[self._label].num_classes

  def __len__(self) -> int:
    return self._count

  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Any]:
    record = self._record(row)
    name = self._name(row, record)
    label = self._read_label(record, name)
    return pictures.decode(record['image'], name), label

  def _read_label(self, record, name):
    if not 0 <= record['label'] < self._classes:
      raise UserError(f'{name} has an invalid label, {record["label"]}')
    return int(record['label'])

  def name(self, row: int) -> str:
    """Returns a record's name for messages."""
    return self._name(row, self._record(row))

  def key(self, row: int) -> str:
    """Returns the file name or id, else the encoded image's SHA-256."""
    record = self._record(row)
    return _file(record) or _hash(record['image'])

  def stored(self, row: int) -> bytes:
    """Returns the encoded image and its label."""
    record = self._record(row)
    label = record[self._label]
    # Label images have a checksum of their own.
    return record['image'] + (b'' if self._label == _MASK else b'%d' % label)

  def cache_folder(self) -> pathlib.Path:
    """Returns where decoded images are kept."""
    return self.folder / 'decoded'

  def fingerprint(self) -> str:
    """Returns a hash that changes when the data set is rewritten."""
    digest = hashlib.sha256(f'{self.folder.name} {self.split}'.encode())
    for path in sorted(self.folder.glob('*.array_record*')):
      stat = path.stat()
      digest.update(f'{path.name} {stat.st_size} {stat.st_mtime_ns}'.encode())
    return digest.hexdigest()

  def _record(self, row):
    try:
      return self._records[int(row)]
    except (RuntimeError, ValueError, OSError) as error:
      reason = str(error).split('\n')[0]
      raise UserError(
          f'{self.folder} is damaged ({reason}); {_again(self.folder)}'
      ) from error

  def _name(self, row, record):
    name = f'{self.folder.parent.name}: record {row} of {self.split!r}'
    file = _file(record)
    return f'{name} ({file})' if file else name


class SegmentationSource(TfdsSource):
  """A split of a prepared segmentation data set.

  Attributes:
    label_checksum: Of the label files and the values that mean no class;
      '' for a set that was prepared without it.
  """

  _label = _MASK

  def __init__(self, builder: Any, split: str):
    """Opens a split, as `TfdsSource` does."""
    super().__init__(builder, split)
    said = builder.info.metadata
    self._coding = pictures.LabelCoding(
        self._classes, said.get('void'), said.get('zero_is_void', False)
    )
    known = said.get('labels', '')
    self.label_checksum = known and _hash(f'{known} {self._coding}'.encode())

  def labels(self) -> Iterator[np.ndarray]:
    """Yields the labels of all records without decoding their images.

    Raises:
      UserError: If a label image is damaged; the message names it.
    """
    for row in range(len(self)):
      record = self._record(row)
      yield self._read_label(record, self._name(row, record))

  def _read_label(self, record, name):
    try:
      return pictures.open_label(record[_MASK], self._coding)
    except ValueError as error:
      raise UserError(f'{name}: its label image {error}') from error

  def sizes(self) -> Iterator[tuple[int, int]]:
    """Yields the width and height of all records."""
    for row in range(len(self)):
      # The label's size: the image may have to be rotated.
      with PIL.Image.open(io.BytesIO(self._record(row)[_MASK])) as label:
        yield label.size


def no_split(name: str, split: str, known: Iterable[str]) -> UserError:
  """Returns the error for a split that a data set does not have."""
  return UserError(
      f'{name} has no split {split!r}, or it is empty: use '
      f"{' or '.join(known)}, or slices of them such as 'train[:90%]'"
  )


def _hash(data):
  return hashlib.sha256(data).hexdigest()


def _file(record):
  """Returns a record's file name or id, '' if it has neither."""
  file = record.get('file_name', record.get('id'))
  if not isinstance(file, bytes):
    return ''
  # Other writers may let invalid UTF-8 through: escaped, names stay distinct.
  return file.decode(errors='backslashreplace')
