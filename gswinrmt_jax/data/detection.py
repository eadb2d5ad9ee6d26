"""Records for detection: whole images with the boxes of their objects.

Images are resized as in mmdetection, except that downscaling is antialiased,
and padded to one canvas, so that a batch has one shape.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import importlib
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from gswinrmt_jax.data import records, segmentation, sources
from gswinrmt_jax.data.records import Batch
from gswinrmt_jax.errors import UserError

LABELS = 'object_labels'  # TFDS's feature with the class of each object

_STRIDE = 32  # canvases have sides of a multiple of this many pixels
_ROUNDED = 8  # objects to a multiple of which the arrays of objects have rows


class Objects(NamedTuple):
  """The objects of an image, in pixels of the image as it is stored.

  Attributes:
    boxes: float32 `[n, 4]`, x0 y0 x1 y1.
    labels: Classes, int32 `[n]`.
    crowds: bool `[n]`, objects that are not told apart. No model is trained to
      find them, and no detection of them counts as right or wrong.
    areas: float64 `[n]`, in square pixels, of the masks if there are any.
    masks: Pixels of each object: the lengths, int32, of runs of 0 and of 1 in
      turn, column by column, the first of 0. None if there are none.
  """

  boxes: np.ndarray
  labels: np.ndarray
  crowds: np.ndarray
  areas: np.ndarray
  masks: tuple[np.ndarray, ...] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Scenes(sources.Source):
  """Records in memory.

  Attributes:
    images: uint8 `[h w 3]` of each record; sizes may differ.
    objects: The objects of each record.
  """

  images: Sequence[np.ndarray]
  objects: Sequence[Objects]

  def __len__(self) -> int:
    return len(self.images)

  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Objects]:
    return PIL.Image.fromarray(self.images[row]), self.objects[row]

  def key(self, row: int) -> str:
    """Returns the SHA-256 of the pixels."""
    return sources.checksum([self.images[row].tobytes()])

  def stored(self, row: int) -> bytes:
    """Returns the pixels and the boxes with their classes."""
    found = self.objects[row]
    arrays = self.images[row], found.boxes, found.labels
    return b''.join(np.ascontiguousarray(x).tobytes() for x in arrays)


class ObjectSource(sources.TfdsSource):
  """A split of a prepared data set for detection.

  Attributes:
    label_checksum: Of the objects of all splits.
  """

  feature = LABELS

  def __init__(self, builder: Any, split: str):
    """Opens a split, as `TfdsSource` does."""
    super().__init__(builder, split)
    self.label_checksum = builder.info.metadata.get('labels', '')
    self._has_masks = builder.info.metadata.get('masks', False)

  def described(self) -> Iterator[tuple[tuple[int, int], Objects]]:
    """Yields width, height and objects of all records; decodes no image."""
    for row in range(len(self)):
      record = self._record(row)
      size = tuple(record['stored_size'].tolist())
      yield size, self._read_label(record, self._name(row, record))

  def stored(self, row: int) -> bytes:
    """Returns the encoded image; the objects have a checksum of their own."""
    return self._record(row)['image']

  def _read_label(self, record, name):
    labels = np.array(record[LABELS], np.int32)
    if labels.size and not 0 <= labels.min() <= labels.max() < self._classes:
      raise UserError(f'{name} has an invalid label')
    masks = None
    if self._has_masks:
      ends = np.cumsum(record['run_counts'])
      masks = tuple(np.split(record['runs'], ends)[:-1])
    return Objects(
        record['boxes'], labels, record['crowds'], record['areas'], masks
    )


@dataclasses.dataclass(frozen=True)
class Training:
  """How records are prepared for training.

  Attributes:
    flip: Whether half of the images are flipped left to right.
    flip_vertical: Whether half of the images are flipped top to bottom.
    mask_crop: Side of the bitmaps of masks; 0 for none.
    without_objects: Whether images without objects are trained on.
  """

  flip: bool = True
  flip_vertical: bool = False
  mask_crop: int = 0
  without_objects: bool = True


class Decoded(records.Decoded):
  """Records for detection that are decoded each time they are read.

  Attributes:
    source: The records as they are stored.
    image_size: Maximum long and maximum short side of resized images, in
      pixels; None keeps their size.
    training: How to prepare records for training; None for evaluation.
    workers: Processes that decode training batches; 0 for threads.
    image_shape: Height, width and channels of the canvas: the largest height
      and width in the split, rounded up to multiples of 32.
    most: Rows of the arrays of objects: the largest number of objects of an
      image in the split, rounded up to a multiple of 8.
    described: Width, height and objects of each record in the source.
  """

  def __init__(
      self,
      source: sources.Source,
      image_size: tuple[int, int] | None = None,
      training: Training | None = None,
      workers: int = 0,
  ):
    """Reads the objects and sizes of all records, but decodes no image.

    Raises:
      UserError: If the model is to be trained on masks and there are none.
    """
    self.source, self.image_size, self.training = source, image_size, training
    self.workers = workers
    self.described = [*source.described()]
    sizes = {segmentation.fit(size, image_size) for size, _ in self.described}
    width, height = (
        -(-side // _STRIDE) * _STRIDE for side in np.max([*sizes], 0)
    )
    self.image_shape = (int(height), int(width), 3)
    counts = [(~objects.crowds).sum() for _, objects in self.described]
    self.most = -(-max(1, *counts) // _ROUNDED) * _ROUNDED
    rows = range(len(counts))
    if training and not training.without_objects:
      rows = [row for row in rows if counts[row]]
    self._rows = np.array(rows, np.int32)
    self.has_objects = any(counts)
    with_masks = (found.masks is not None for _, found in self.described)
    if training and training.mask_crop and not all(with_masks):
      raise UserError(
          'the objects have boxes without masks, and the head of the detector '
          'learns masks: set config.detector.head=retina'
      )

  def __len__(self) -> int:
    return len(self._rows)

  def read(self, row: int, rng: np.random.Generator | None = None) -> Batch:
    """Decodes a record, as `records.Decoded.read`; adds its row in the source.

    Raises:
      UserError: If the record cannot be decoded; the message names it.
    """
    if row == len(self):
      return self.blank()
    row = int(self._rows[row])
    return self.convert(*self.source[row], rng) | {'row': np.int32(row)}

  @property
  def is_random(self) -> bool:
    """Whether images are flipped at random, for training."""
    return self.training is not None

  def convert(
      self,
      image: PIL.Image.Image,
      label: Objects,
      rng: np.random.Generator | None,
  ) -> Batch:
    """Returns the arrays of a record.

    Returns:
      'image' uint8 [h w 3], with black padding, and 'extents' int32 [2], height
      and width of the image without it. For training, the objects except
      crowds, in pixels of the canvas: 'boxes' float32 [g 4], 'labels' int32
      [g], 'valid' bool [g] (which rows are used) and, with masks, 'bitmaps'
      uint8 [g m m], what an object covers of its box.
    """
    size = segmentation.fit(image.size, self.image_size)
    pixels = segmentation.resize_image(image, size)
    found = {}
    if self.training:
      side = self.training.mask_crop
      found = _truth(label, image.size, size, side)
      pixels, found = _flipped(pixels, found, self.training, rng)
    record = self._padded(pixels)
    for name, array in found.items():
      record[name] = np.zeros((self.most, *array.shape[1:]), array.dtype)
      record[name][: len(array)] = array
    return record

  def blank(self) -> Batch:
    """Returns the arrays of a black image, with full extents, and row 0."""
    record = self._padded(np.zeros(self.image_shape, np.uint8))
    return record | {'row': np.int32(0)}

  def _padded(self, pixels):
    image = np.zeros(self.image_shape, np.uint8)
    image[: pixels.shape[0], : pixels.shape[1]] = pixels
    return {'image': image, 'extents': np.array(pixels.shape[:2], np.int32)}


def _truth(objects, stored, resized, mask_crop):
  """Returns the arrays of the objects of an image that are trained on."""
  # Smaller objects than a pixel are not trained on either, as in mmdetection.
  large = (objects.boxes[:, 2:] - objects.boxes[:, :2] >= 1).all(1)
  kept = np.flatnonzero(~objects.crowds & large)
  scale = np.float32(resized * 2) / np.float32(stored * 2)
  boxes = np.clip(objects.boxes[kept] * scale, 0, np.float32(resized * 2))
  found = {
      'boxes': boxes,
      'labels': objects.labels[kept],
      'valid': np.ones(len(kept), bool),
  }
  if mask_crop:
    crops = [
        crop(objects.masks[row], stored[1], objects.boxes[row], mask_crop)
        for row in kept
    ]
    shape = (len(crops), mask_crop, mask_crop)
    found['bitmaps'] = np.array(crops, np.uint8).reshape(shape)
  return found


def _flipped(image, found, how, rng):
  """Returns image and objects, each axis flipped with probability 1/2."""
  draws = rng.random(2)
  boxes = found['boxes']
  for axis, wanted in ((1, how.flip), (0, how.flip_vertical)):
    if not wanted or draws[axis] >= 0.5:
      continue
    image = np.flip(image, axis)
    low, high = 1 - axis, 3 - axis  # of x, or of y
    boxes = boxes.copy()
    boxes[:, [low, high]] = image.shape[axis] - boxes[:, [high, low]]
    if 'bitmaps' in found:
      found = found | {'bitmaps': np.flip(found['bitmaps'], axis + 1)}
  return image, found | {'boxes': boxes}


def crop(
    runs: np.ndarray, height: int, box: np.ndarray, side: int
) -> np.ndarray:
  """Samples a mask at `side x side` points of a box.

  The points are the centres of equal cells; each has the value of the pixel
  that contains it. Only they are decoded, not the mask.

  Args:
    runs: The mask, as in `Objects`.
    height: Height of the image in pixels.
    box: x0 y0 x1 y1.
    side: Points along each axis.

  Returns:
    uint8 `[side, side]`, 0 or 1; outside of the image 0.
  """
  ends = np.cumsum(runs)
  at = (np.arange(side) + 0.5) / side
  columns, rows = (
      np.floor(low + (high - low) * at).astype(np.int64)
      for low, high in ((box[0], box[2]), (box[1], box[3]))
  )
  pixels = columns[None] * height + rows[:, None]
  inside = ((rows >= 0) & (rows < height))[:, None] & (columns >= 0)[None]
  # Runs of odd index are the object; beyond the last one is no pixel.
  run = np.searchsorted(ends, pixels, side='right')
  return (inside & (run % 2 == 1) & (run < len(runs))).astype(np.uint8)


def from_masks(masks: Sequence[tuple[int, np.ndarray]]) -> Objects:
  """Returns the objects of an image, given class and mask `[h w]` of each.

  Raises:
    ValueError: If a mask is empty.
  """
  boxes = np.zeros((len(masks), 4), np.float32)
  for box, (_, mask) in zip(boxes, masks, strict=True):
    columns, rows = (np.flatnonzero(mask.any(axis)) for axis in (0, 1))
    box[:] = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
  return Objects(
      boxes,
      np.array([label for label, _ in masks], np.int32),
      np.zeros(len(masks), bool),
      np.array([mask.sum() for _, mask in masks], np.float64),
      tuple(runs(mask) for _, mask in masks),
  )


def runs(mask: np.ndarray) -> np.ndarray:
  """Returns a mask `[h w]` as the runs of `Objects`."""
  pixels = np.concatenate([[0], mask.ravel(order='F') != 0, [2]])
  ends = np.flatnonzero(np.diff(pixels))
  return np.diff(ends, prepend=0).astype(np.int32)


def pycocotools(module: str) -> Any:
  """Returns a module of pycocotools, which is an extra.

  Raises:
    UserError: If it is not installed.
  """
  try:
    return importlib.import_module(f'pycocotools.{module}')
  except ImportError as error:
    raise UserError(
        'detection needs pycocotools: pip install "gswinrmt_jax[detection]"'
    ) from error
