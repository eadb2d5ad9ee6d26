"""Records of a split as arrays, decoded once or at each access."""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os

import numpy as np

from gswinrmt_jax.data import parallel, pictures
from gswinrmt_jax.data.sources import Source
from gswinrmt_jax.errors import UserError

Batch = dict[str, np.ndarray]

_CHUNK = 256  # records that a thread decodes at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
  """Records decoded once, in memory or memory-mapped.

  Attributes:
    image: uint8 [n h w 3].
    label: int32 [n].
    source: The stored records that they were decoded from, if any.
  """

  image: np.ndarray
  label: np.ndarray
  source: Source | None = None

  workers = 0  # There is nothing to decode.

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
  """Records stored on the devices; batches hold only row indices."""

  count: int
  image_shape: tuple[int, int, int]
  source: Source | None = None

  workers = 0

  def __len__(self) -> int:
    return self.count


class Decoded:
  """Records that are decoded each time they are gathered.

  Attributes:
    source: The records as they are stored.
    size: Height and width in pixels to resize images to; None keeps the stored
      size, which must be the same for all.
    crop: As in `pictures.fit`, or a `RandomCrop`, which needs a size.
    workers: Decoding processes; 0 for threads of this process.
    image_shape: Height, width and channels of an image.
  """

  def __init__(
      self,
      source: Source,
      size: tuple[int, int] | None = None,
      crop: float | pictures.RandomCrop = 0.0,
      workers: int = 0,
  ):
    self.source, self.size, self.crop = source, size, crop
    self.workers = workers
    first, _ = source[0]
    self.image_shape = (*(size or (first.height, first.width)), 3)

  def __len__(self) -> int:
    return len(self.source)

  def gather(
      self,
      rows: Sequence[int],
      seed: int = 0,
      positions: np.ndarray | None = None,
  ) -> Batch:
    """Returns a batch, whose random crops depend only on seed and positions.

    Random crops need `positions`, the position of each row in the training
    stream, so that a record is cropped differently each time.

    Returns:
      'image' uint8 [b h w 3], 'label' int32 [b] and, with random crops, 'box'
      float32 [b 4]: top, left, height and width in fractions of the image.

    Raises:
      UserError: If a record cannot be decoded, or has another size than the
        first; the message names it.
    """
    batch = {
        'image': np.empty((len(rows), *self.image_shape), np.uint8),
        'label': np.empty(len(rows), np.int32),
    }
    if isinstance(self.crop, pictures.RandomCrop):
      batch['box'] = np.empty((len(rows), 4), np.float32)
    for index, row in enumerate(rows):
      picture, label = self.source[row]
      if 'box' in batch:
        rng = generator(seed, positions[index])
        fitted, batch['box'][index] = pictures.random_crop(
            picture, self.size, self.crop, rng
        )
      elif self.size:
        fitted = pictures.fit(picture, self.size, self.crop)
      else:
        fitted = np.asarray(picture)
      if fitted.shape != self.image_shape:
        height, width, _ = self.image_shape
        raise UserError(
            f'{self.source.name(row)} has {fitted.shape[1]} x '
            f'{fitted.shape[0]} pixels, the first {width} x {height}: set '
            'config.data.image_size'
        )
      batch['image'][index], batch['label'][index] = fitted, label
    return batch


Records = Arrays | Decoded


def generator(seed: int, position: int) -> np.random.Generator:
  """Returns the random generator of a position in the training stream."""
  # Counter-based: the key alone determines what it draws.
  key = np.array([seed, position], np.uint64)
  return np.random.Generator(np.random.Philox(key=key))


def to_memory(records: Decoded) -> Arrays:
  """Decodes all records once, into memory.

  Raises:
    UserError: As in `decode_all`, or if memory is too small.
  """
  shape = (len(records), *records.image_shape)
  size = int(np.prod(shape))
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  if size > memory:
    raise UserError(
        f'{shape[0]:,} images of {shape[1]} x {shape[2]} pixels would take '
        f'{size / 1e9:.1f} GB of memory, this machine has {memory / 1e9:.1f} '
        'GB: set config.data.storage to disk or decode'
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
  """Yields all records in order, in chunks decoded by several threads.

  In a terminal, a progress bar appears after a second.

  Raises:
    UserError: If a record cannot be decoded, or sizes differ.
  """
  rows = range(len(records))
  chunks = [rows[start : start + _CHUNK] for start in rows[::_CHUNK]]
  stream = parallel.in_threads(
      lambda index: records.gather(chunks[index]), len(chunks)
  )
  with contextlib.closing(stream):
    yield from parallel.with_bar(
        stream, 'decoding', len(chunks), unit_scale=_CHUNK, delay=1
    )
