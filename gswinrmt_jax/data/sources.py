"""Records as they are stored: encoded images with their labels."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np
import PIL.Image

from gswinrmt_jax.data import pictures, prepared
from gswinrmt_jax.errors import UserError

_FETCHED = 64  # records that are held encoded at a time


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySource:
  """Records in memory that belong to no prepared data set.

  Attributes:
    image: uint8 `[n h w 3]`.
    label: int32 `[n]`.
    version: Empty.
  """

  image: np.ndarray
  label: np.ndarray

  version = ''

  def __len__(self) -> int:
    return len(self.label)

  def read(self, rows: Sequence[int]) -> Iterator[tuple[PIL.Image.Image, int]]:
    """Yields picture and label of each row."""
    for row in rows:
      yield PIL.Image.fromarray(self.image[row]), self.label[row]

  def name(self, row: int) -> str:
    """Returns a record's name for messages."""
    return f'record {row}'

  def keys(self, rows: Sequence[int]) -> list[str]:
    """Returns the SHA-256 of each row's pixels: there are no names."""
    return [_hash(self.image[row].tobytes()) for row in rows]


class TfdsSource:
  """A split of a data set that TFDS has prepared, images still encoded.

  Attributes:
    folder: The data set's directory.
    split: As requested, slices included.
    version: Of the data set.
  """

  def __init__(self, builder: Any, split: str):
    """Opens a split of a TFDS builder, or slices such as 'train[:90%]'.

    Raises:
      UserError: If there is no such split; names those that there are.
    """
    import tensorflow_datasets as tfds

    self.folder = pathlib.Path(builder.data_path)
    self.split = split
    self.version = str(builder.info.version)
    # Decoded here: TFDS takes half as long again, warns about OpenCV and takes
    # the indices of a palette for grey levels.
    skip = {'image': tfds.decode.SkipDecoding()}
    try:
      self._records = builder.as_data_source(split, decoders=skip)
      self._count = len(self._records)
    except (ValueError, AssertionError) as error:
      raise UserError(
          f'{builder.name} has no split {split!r}, or it is empty: use '
          f'{" or ".join(builder.info.splits)}, or slices of them such as '
          "'train[:90%]'"
      ) from error
    self._classes = builder.info.features['label'].num_classes

  def __len__(self) -> int:
    return self._count

  def read(self, rows: Sequence[int]) -> Iterator[tuple[PIL.Image.Image, int]]:
    """Yields picture and label of each row.

    Raises:
      UserError: If a record is damaged; names it.
    """
    for row, record in zip(rows, self._fetch(rows), strict=True):
      name = self._name(row, record)
      if not 0 <= record['label'] < self._classes:
        raise UserError(f'{name} has no label: it says {record["label"]}')
      yield pictures.decode(record['image'], name), int(record['label'])

  def name(self, row: int) -> str:
    """Returns a record's name for messages."""
    (record,) = self._fetch([row])
    return self._name(row, record)

  def keys(self, rows: Sequence[int]) -> list[str]:
    """Returns file name, id or, without both, the encoded image's SHA-256."""
    return [
        _file(record) or _hash(record['image']) for record in self._fetch(rows)
    ]

  def fingerprint(self) -> str:
    """Returns a hash that changes when the data set is written again."""
    digest = hashlib.sha256(f'{self.folder.name} {self.split}'.encode())
    for path in sorted(self.folder.glob('*.array_record*')):
      stat = path.stat()
      digest.update(f'{path.name} {stat.st_size} {stat.st_mtime_ns}'.encode())
    return digest.hexdigest()

  def _fetch(self, rows):
    """Yields records, few of them held at a time."""
    rows = [int(row) for row in rows]
    for start in range(0, len(rows), _FETCHED):
      try:
        records = self._records.__getitems__(rows[start : start + _FETCHED])
      except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).split('\n')[0]
        raise UserError(
            f'{self.folder} is damaged ({reason}); remove that directory and '
            f'run `{prepared.command(self.folder.parent.name)}`'
        ) from error
      yield from records

  def _name(self, row, record):
    name = f'{self.folder.parent.name}: record {row} of {self.split!r}'
    file = _file(record)
    return f'{name} ({file})' if file else name


# The records of one split in their stored order.
Source = ArraySource | TfdsSource


def _hash(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()


def _file(record: Mapping[str, Any]) -> str:
  """Returns the name of a record's file, '' if it has none.

  Bytes that are not UTF-8, which other writers may have let through, become
  escape sequences: names stay distinct and can be printed.
  """
  file = record.get('file_name', record.get('id', b''))
  return (
      file.decode(errors='backslashreplace') if isinstance(file, bytes) else ''
  )
