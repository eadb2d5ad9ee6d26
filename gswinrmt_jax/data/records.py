"""Records of a split as arrays, decoded once or each time they are read."""

import abc
from collections.abc import Iterator
import contextlib
import dataclasses
import math
import os
from typing import Any

import numpy as np
import PIL.Image

from gswinrmt_jax.data import parallel, resizing, sources
from gswinrmt_jax.data.sources import Source
from gswinrmt_jax.errors import UserError

Batch = dict[str, np.ndarray]

# Most records, and bytes, that a thread decodes at a time.
_CHUNK, _CHUNK_BYTES = 256, 2**25
# Stored pixels up to which one thread is the fastest: most of the time is
# Python's own, which holds its lock. CIFAR-10 takes 265 us an image, with two
# threads 355, with sixteen 490 (two cores, beside a training).
_SMALL = 32 * 32


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays(Source):
  """Records in memory or memory-mapped, which are a `Source`, too.

  Attributes:
    image: uint8 `[n h w 3]`.
    label: int32 `[n]`, or per pixel, uint8 `[n h w]`.
    stored_as: The records that they were decoded from; None if there are none.
  """

  image: np.ndarray
  label: np.ndarray
  stored_as: Source | None = None

  @property
  def source(self) -> Source:
    """The records as they are stored."""
    return self if self.stored_as is None else self.stored_as

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width and channels of an image."""
    return self.image.shape[1:]

  def gather(self, rows: np.ndarray) -> Batch:
    """Returns 'image' uint8 [b h w 3] and 'label' of these rows."""
    return {'image': self.image[rows], 'label': self.label[rows]}

  def __len__(self) -> int:
    return len(self.label)

  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Any]:
    return PIL.Image.fromarray(self.image[row]), self.label[row]

  def stored(self, row: int) -> bytes:
    """Returns the pixels."""
    return self.image[row].tobytes()

  def content_checksum(self) -> str:
    """Returns a checksum of all images and labels."""
    images = map(self.stored, range(len(self)))
    labels = np.asarray(self.label, np.int32).tobytes()
    return sources.checksum([*images, labels])


class OnTheFly(abc.ABC):
  """Records that are decoded each time they are read.

  There is a subclass for each task. It sets the attributes.

  Attributes:
    source: The records as they are stored.
    workers: Processes that decode training batches; 0 for threads.
    num_classes: Number of classes, to check labels by; None does not.
    image_shape: Height, width and channels of an image in a batch.
  """

  source: Source
  workers: int
  num_classes: int | None
  image_shape: tuple[int, int, int]

  def __len__(self) -> int:
    return len(self.source)

  @property
  @abc.abstractmethod
  def is_random(self) -> bool:
    """Whether `read` draws, for which it needs a generator."""

  def read(self, row: int, rng: np.random.Generator | None = None) -> Batch:
    """Decodes a record.

    Args:
      row: Row of the record.
      rng: Draws, if `is_random`.

    Raises:
      UserError: If the record cannot be decoded, or its image has another size
        than `image_shape`; the message names it.
    """
    record = self.convert(*self.load(row), rng)
    shape, first = record['image'].shape, self.image_shape
    if shape != first:
      raise UserError(
          f'{self.source.name(row)} has {shape[1]} x {shape[0]} pixels, the '
          f'first image {first[1]} x {first[0]}: set config.data.image_size'
      )
    return record

  def load(self, row: int) -> tuple[PIL.Image.Image, Any]:
    """Returns image and label of a record, as `Source.__getitem__`.

    Raises:
      UserError: If the record cannot be decoded, or its image is not RGB.
    """
    image, label = self.source[row]
    if image.mode != 'RGB':
      raise UserError(
          f'{self.source.name(row)} has the mode {image.mode}: its source must '
          'return RGB images'
      )
    return image, label

  @abc.abstractmethod
  def convert(
      self,
      image: PIL.Image.Image,
      label: Any,
      rng: np.random.Generator | None,
  ) -> Batch:
    """Returns the arrays of a record, 'image' and what the task needs."""


class Images(OnTheFly):
  """Records for classification.

  Attributes:
    size: Height and width in pixels to resize images to; None keeps the stored
      size, which must be the same for all.
    training: The random crops for training, which need a size; None for none.
    eval_crop: The `crop` of `resizing.center_crop`, without random crops.
    stored_pixels: Number of pixels of the first image as it is stored.
  """

  def __init__(
      self,
      source: Source,
      size: tuple[int, int] | None = None,
      training: resizing.RandomCrop | None = None,
      workers: int = 0,
      num_classes: int | None = None,
      *,
      eval_crop: float = 0.0,
  ):
    self.source, self.size, self.training = source, size, training
    self.workers, self.eval_crop = workers, eval_crop
    self.num_classes = num_classes
    first, _ = source[0]
    self.stored_pixels = first.height * first.width
    self.image_shape = (*(size or (first.height, first.width)), 3)

  @property
  def is_random(self) -> bool:
    """Whether images are cropped at random."""
    return self.training is not None

  def load(self, row: int) -> tuple[PIL.Image.Image, Any]:
    """Returns image and label of a record, as `OnTheFly.load`.

    Raises:
      UserError: Also if the label is none of the classes.
    """
    image, label = super().load(row)
    check_labels(np.asarray(label), self.num_classes, self.source, row)
    return image, label

  def convert(
      self,
      image: PIL.Image.Image,
      label: Any,
      rng: np.random.Generator | None,
  ) -> Batch:
    """Returns the arrays of a record.

    Returns:
      'image' uint8 [h w 3], 'label' int32 [] and, with random crops, 'box'
      float32 [4]: top, left, height and width in fractions of the image.
    """
    record = {'label': np.int32(label)}
    if self.training:
      image, box = resizing.random_crop(image, self.size, self.training, rng)
      record['box'] = np.array(box, np.float32)
    elif self.size:
      image = resizing.center_crop(image, self.size, self.eval_crop)
    return {'image': np.asarray(image), **record}


def check_labels(
    labels: np.ndarray,
    num_classes: int | None,
    source: Source,
    row: int,
    void: int | None = None,
) -> None:
  """Raises UserError if a label of a record is neither a class nor void.

  A number of None checks nothing. Prepared data and class folders are checked
  when they are read; a source of one's own may return any label.
  """
  if num_classes is None:
    return
  wrong = labels[(labels < 0) | (labels >= num_classes)]
  wrong = wrong[wrong != void] if void is not None else wrong
  if wrong.size:
    raise UserError(
        f'{source.name(row)} has the label {wrong[0]}: classes are 0 to '
        f'{num_classes - 1}'
    )


def to_memory(records: Images) -> Arrays:
  """Decodes all records once, into memory.

  Raises:
    UserError: As in `decode_all`, or if memory is too small.
  """
  shape = (len(records), *records.image_shape)
  size = int(np.prod(shape))
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  if size > memory:
    raise UserError(
        f'{shape[0]:,} images of {shape[2]} x {shape[1]} pixels would take '
        f'{size / 1e9:.1f} GB of memory, this machine has {memory / 1e9:.1f} '
        'GB: set config.data.storage to disk or decode'
    )
  arrays = Arrays(
      np.empty(shape, np.uint8), np.empty(shape[0], np.int32), records.source
  )
  start = 0
  for chunk in decode_all(records):
    stop = start + len(chunk['label'])
    arrays.image[start:stop] = chunk['image']
    arrays.label[start:stop] = chunk['label']
    start = stop
  return arrays


def decode_all(records: Images) -> Iterator[Batch]:
  """Yields all records in order, in batches decoded by threads.

  In a terminal, a progress bar appears after a second.

  Raises:
    UserError: As in `OnTheFly.read`.
  """
  import grain

  dataset = grain.MapDataset.range(len(records)).map(records.read)
  chunk = min(_CHUNK, max(_CHUNK_BYTES // math.prod(records.image_shape), 1))
  dataset = dataset.batch(chunk)
  threads = 1 if records.stored_pixels <= _SMALL else None
  with contextlib.closing(parallel.in_threads(dataset, threads)) as chunks:
    yield from parallel.with_bar(
        chunks, 'decoding', len(dataset), unit_scale=chunk, delay=1
    )
