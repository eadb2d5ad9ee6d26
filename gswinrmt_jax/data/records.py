"""The records of a split as arrays, decoded beforehand or when needed."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
import concurrent.futures
import contextlib
import dataclasses
import itertools

import numpy as np

from gswinrmt_jax.data import machine, pictures
from gswinrmt_jax.data.sources import Source
from gswinrmt_jax.errors import UserError

Batch = dict[str, np.ndarray]

_CHUNK = 256  # records that a thread decodes at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
  """Records decoded beforehand, in memory or mapped to it.

  Attributes:
    image: uint8 [n h w 3].
    label: int32 [n].
    source: What they were decoded from, if anything.
  """

  image: np.ndarray
  label: np.ndarray
  source: Source | None = None

  workers = 0  # There is nothing for them to do.

  def __len__(self) -> int:
    return len(self.label)

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width and channels of an image."""
    return self.image.shape[1:]

  def gather(self, rows: np.ndarray) -> Batch:
    """Returns 'image' uint8 [b h w 3] and 'label' int32 [b] of these rows."""
    return {'image': self.image[rows], 'label': self.label[rows]}


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
  """Records that are elsewhere: of a batch the host has the row numbers.

  Attributes:
    count: How many there are.
    image_shape: Height, width and channels of an image.
    source: What they were decoded from, if anything.
  """

  count: int
  image_shape: tuple[int, int, int]
  source: Source | None = None

  workers = 0

  def __len__(self) -> int:
    return self.count

  def gather(self, rows: np.ndarray) -> Batch:
    """Returns nothing: the rows themselves are part of every batch."""
    del rows
    return {}


class Decoded:
  """Records that are decoded each time they are gathered.

  Attributes:
    source: The records as they are stored.
    size: Height and width that images are brought to; None keeps them as they
      are stored, all of one size.
    crop: Part of the resized image that is kept, as `pictures.fit` has it.
    workers: Processes to decode in; 0 for none.
    image_shape: Height, width and channels of an image.
  """

  def __init__(
      self,
      source: Source,
      size: tuple[int, int] | None = None,
      crop: float = 0.0,
      workers: int = 0,
  ):
    self.source, self.size, self.crop = source, size, crop
    self.workers = workers
    ((first, _),) = self._read([0])
    self.image_shape = first.shape

  def __len__(self) -> int:
    return len(self.source)

  def gather(self, rows: np.ndarray) -> Batch:
    """Returns 'image' uint8 [b h w 3] and 'label' int32 [b] of these rows.

    Raises:
      UserError: If a record cannot be decoded, or has another size than the
        first; names it.
    """
    image = np.empty((len(rows), *self.image_shape), np.uint8)
    label = np.empty(len(rows), np.int32)
    for index, (one, number) in enumerate(self._read(rows)):
      if one.shape != self.image_shape:
        height, width, _ = self.image_shape
        raise UserError(
            f'{self.source.name(rows[index])} has {one.shape[1]} x '
            f'{one.shape[0]} pixels, the first {width} x {height}: set '
            'config.data.image_size'
        )
      image[index], label[index] = one, number
    return {'image': image, 'label': label}

  def _read(self, rows):
    for picture, label in self.source.read(rows):
      if self.size is None:
        yield np.asarray(picture), label
      else:
        yield pictures.fit(picture, self.size, self.crop), label


def to_memory(records: Decoded) -> Arrays:
  """Returns the records decoded once, to memory.

  Raises:
    UserError: If one cannot be decoded, sizes differ, or there is no room.
  """
  shape = (len(records), *records.image_shape)
  size = int(np.prod(shape))
  room = machine.free_memory()
  if room is not None and size > room:
    raise UserError(
        f'{shape[0]:,} images of {shape[1]} x {shape[2]} pixels would take '
        f'{size / 1e9:.1f} GB of memory, {room / 1e9:.1f} GB are free: set '
        'config.data.storage to disk or decode'
    )
  arrays = Arrays(
      np.empty(shape, np.uint8), np.empty(shape[0], np.int32), records.source
  )
  start = 0
  for chunk in decode_all(records):
    stop = start + len(chunk['label'])
    arrays.image[start:stop], arrays.label[start:stop] = chunk.values()
    start = stop
  return arrays


def decode_all(records: Decoded) -> Iterator[Batch]:
  """Yields all records in order, a chunk at a time, as `decode_ahead` does.

  If it takes more than a moment and there is a terminal, a bar tells how long
  it will.

  Raises:
    UserError: If a record cannot be decoded, or sizes differ.
  """
  import tqdm

  starts = range(0, len(records), _CHUNK)
  parts = (range(s, min(s + _CHUNK, len(records))) for s in starts)
  bar = tqdm.tqdm(
      total=len(records), desc='decoding', unit='img', disable=None, delay=1
  )
  with contextlib.closing(decode_ahead(records, parts)) as chunks, bar:
    for chunk in chunks:
      bar.update(len(chunk['label']))
      yield chunk


def decode_ahead(
    records: Decoded, parts: Iterable[Sequence[int]]
) -> Iterator[Batch]:
  """Yields the records of each part, in several threads that decode ahead.

  Pillow lets go of Python's lock meanwhile. No more parts than there are
  threads wait to be taken.

  Args:
    records: The records.
    parts: Rows that a thread decodes at a time.

  Raises:
    UserError: If a record cannot be decoded, or sizes differ.
  """
  threads = machine.cores()
  parts = iter(parts)
  pool = concurrent.futures.ThreadPoolExecutor(threads)

  def begin(count):
    return [
        pool.submit(records.gather, rows)
        for rows in itertools.islice(parts, count)
    ]

  try:
    ahead = deque(begin(threads))
    while ahead:
      part = ahead.popleft().result()
      ahead += begin(1)
      yield part
  finally:  # An error, or Ctrl-C: what has not begun need not.
    pool.shutdown(cancel_futures=True)
