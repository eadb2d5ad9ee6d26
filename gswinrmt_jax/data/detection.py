"""Records for detection: whole images with the boxes of their objects.

Images are resized as in mmdetection, except that downscaling is antialiased,
and padded to one canvas, so that a batch has one shape. Training may resize
them to many sizes and crop them, as DETR does.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import importlib
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from gswinrmt_jax.data import records, resizing, sources
from gswinrmt_jax.data.records import Batch
from gswinrmt_jax.errors import UserError

LABELS = 'object_labels'  # TFDS's feature with the class of each object

_STRIDE = 32  # canvases have sides of a multiple of this many pixels
_ROUNDED = 8  # objects to a multiple of which the arrays of objects have rows

# DETR's sizes, as shares of its longest short side of 800 pixels: short sides
# of images (480, 512, ... 800), of images before a crop (400, 500, 600), and
# the least and the largest side of a crop (384, 600).
_SHORT_SIDES = tuple(side / 25 for side in range(15, 26))
_SHORT_SIDES_TO_CROP = (1 / 2, 5 / 8, 3 / 4)
_CROP_SIDES = (12 / 25, 3 / 4)
# In pixels: the most that rounding leaves of an object that ends at a crop.
_UNSEEN = 1e-3


class Objects(NamedTuple):
  """The objects of an image, in pixels of the stored image as EXIF turns it.

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


def has_objects(described: Iterable[tuple[Any, Objects]]) -> bool:
  """Returns whether any image has an object that is no crowd.

  Args:
    described: Size and objects of each image, see `Source.described`.
  """
  return not all(objects.crowds.all() for _, objects in described)


@dataclasses.dataclass(frozen=True)
class Training:
  """How records are prepared for training.

  Attributes:
    flip: Whether half of the images are flipped left to right.
    flip_vertical: Whether half of the images are flipped top to bottom.
    multi_scale: Whether images are resized and cropped by `draw_view`.
    mask_crop: Side of the bitmaps of masks; 0 for none.
    without_objects: Whether images without objects are trained on.
  """

  flip: bool = True
  flip_vertical: bool = False
  multi_scale: bool = False
  mask_crop: int = 0
  without_objects: bool = True


class AnnotatedImages(records.OnTheFly):
  """Records for detection.

  Attributes:
    source: The records as they are stored.
    image_size: Maximum long and maximum short side of resized images, in
      pixels; None keeps their size.
    training: How to prepare records for training; None for evaluation.
    workers: Processes that decode training batches; 0 for threads.
    num_classes: Number of classes, to check labels by; None does not.
    image_shape: Height, width and channels of the canvas: the largest height
      and width in the split, rounded up to multiples of 32. With multi-scale
      training, both are the maximum long side: crops have any orientation.
    most: Rows of the arrays of objects: the largest number of objects of an
      image in the split, rounded up to a multiple of 8.
    described: Width, height and objects of each record in the source; for
      training, without masks.
    has_masks: Whether all objects have masks.
  """

  def __init__(
      self,
      source: sources.Source,
      image_size: tuple[int, int] | None = None,
      training: Training | None = None,
      workers: int = 0,
      num_classes: int | None = None,
  ):
    """Reads the objects and sizes of all records, but decodes no image.

    Raises:
      UserError: If the model is to be trained on masks and there are none, or
        at many scales and the size of images is kept; or if a label is none of
        the classes.
    """
    if training and training.multi_scale and not image_size:
      raise UserError(
          'config.augment.multi_scale resizes images to shares of '
          'config.data.fit_within, which is (0, 0): set it'
      )
    self.source, self.image_size, self.training = source, image_size, training
    self.workers, self.num_classes = workers, num_classes
    self.described = [*source.described()]
    for row, (_, objects) in enumerate(self.described):
      records.check_labels(objects.labels, num_classes, source, row)
    if training and training.multi_scale:
      sizes = {(image_size[0], image_size[0])}
    else:
      sizes = {
          resizing.size_within(size, image_size) for size, _ in self.described
      }
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
    self.has_masks = all(x.masks is not None for _, x in self.described)
    if training and training.mask_crop and not self.has_masks:
      raise UserError(
          'the objects have boxes without masks, and the head of the detector '
          'learns masks: set config.detector.head=retina'
      )
    if training:  # Their masks are read with the images; workers get a copy.
      self.described = [
          (size, objects._replace(masks=None))
          for size, objects in self.described
      ]

  def __len__(self) -> int:
    return len(self._rows)

  def sides(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns width and height of each object but crowds, `[n 2]` in pixels.

    First in the stored images, then in the resized ones.
    """
    stored, resized = [np.zeros((0, 2))], [np.zeros((0, 2))]
    for size, objects in self.described:
      boxes = objects.boxes[~objects.crowds]
      stored.append(boxes[:, 2:] - boxes[:, :2])
      scale = np.divide(resizing.size_within(size, self.image_size), size)
      resized.append(stored[-1] * scale)
    return np.concatenate(stored), np.concatenate(resized)

  def read(self, row: int, rng: np.random.Generator | None = None) -> Batch:
    """Decodes a record, as `OnTheFly.read`; adds its row in the source.

    Raises:
      UserError: If the record cannot be decoded; the message names it.
    """
    row = int(self._rows[row])
    return self.convert(*self.load(row), rng) | {'row': np.int32(row)}

  @property
  def is_random(self) -> bool:
    """Whether images are flipped, resized or cropped at random."""
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
    how = self.training
    if how and how.multi_scale:
      view = draw_view(image.size, self.image_size, rng)
    else:
      view = View(resizing.size_within(image.size, self.image_size))
    pixels, found = view.pixels(image), {}
    if how:
      found = _truth(label, image.size, view, how.mask_crop)
      pixels, found = _flipped(pixels, found, how, rng)
    record = {
        'image': np.zeros(self.image_shape, np.uint8),
        'extents': np.array(pixels.shape[:2], np.int32),
    }
    record['image'][: pixels.shape[0], : pixels.shape[1]] = pixels
    for name, array in found.items():
      record[name] = np.zeros((self.most, *array.shape[1:]), array.dtype)
      record[name][: len(array)] = array
    return record


@dataclasses.dataclass(frozen=True)
class View:
  """A part of an image, and the size at which a model sees it.

  Attributes:
    size: Width and height of the view, in pixels.
    whole: Width and height to which the image is resized before the crop; None
      if it is not cropped.
    crop: Left, top, right and bottom of the crop in the resized image.
  """

  size: tuple[int, int]
  whole: tuple[int, int] | None = None
  crop: tuple[int, int, int, int] | None = None

  def pixels(self, image: PIL.Image.Image) -> np.ndarray:
    """Returns the view of an image, uint8 `[h w 3]`.

    A crop is resized twice, as in mmdetection: with the image, and by itself.
    """
    if self.crop:
      cropped = resizing.resize(image, self.whole, self.crop)
      image = PIL.Image.fromarray(cropped)
    return resizing.resize(image, self.size)

  def window(self, stored: tuple[int, int]) -> np.ndarray:
    """Returns the crop, x0 y0 x1 y1, in pixels of the stored image."""
    if not self.crop:
      return np.float32((0, 0, *stored))
    scale = np.float32(stored * 2) / np.float32(self.whole * 2)
    return np.float32(self.crop) * scale


def draw_view(
    stored: tuple[int, int], within: tuple[int, int], rng: np.random.Generator
) -> View:
  """Draws a size and, for half of the images, a crop (DETR, section 4).

      whole image:  short side S, uniformly from .6 s, .64 s, ... s
      crop:         short side .5 s, .625 s or .75 s; then a crop, its width and
                    its height uniformly from .48 s to .75 s, or all there is;
                    then its short side S

  where s is the maximum short side. If the long side would exceed its maximum,
  the image or crop is resized to that instead, as by mmdetection 2; DETR does
  not limit an image before its crop.

  Args:
    stored: Width and height of the image.
    within: The maximum long side and the maximum short side.
    rng: Draws the numbers.
  """
  long, short = within

  def fit(size, shares):
    return resizing.size_within(size, (long, round(short * rng.choice(shares))))

  if rng.random() < 0.5:
    return View(fit(stored, _SHORT_SIDES))
  whole = fit(stored, _SHORT_SIDES_TO_CROP)
  least, most = (max(1, round(short * share)) for share in _CROP_SIDES)
  width, height = (
      rng.integers(min(side, least), min(side, most) + 1) for side in whole
  )
  left = rng.integers(whole[0] - width + 1)
  top = rng.integers(whole[1] - height + 1)
  crop = (int(left), int(top), int(left + width), int(top + height))
  return View(fit((int(width), int(height)), _SHORT_SIDES), whole, crop)


def _truth(objects, stored, view, mask_crop):
  """Returns the arrays of the objects of a view that are trained on."""
  window = view.window(stored)
  low, high = window[:2], window[2:]
  seen = np.clip(objects.boxes, np.tile(low, 2), np.tile(high, 2))
  # Objects smaller than a pixel are not trained on either, as in mmdetection.
  large = (objects.boxes[:, 2:] - objects.boxes[:, :2] >= 1).all(1)
  visible = (seen[:, 2:] - seen[:, :2] > _UNSEEN).all(1)
  kept = np.flatnonzero(~objects.crowds & large & visible)
  scale = np.float32(view.size) / (high - low)
  boxes = (seen[kept] - np.tile(low, 2)) * np.tile(scale, 2)
  found = {
      'boxes': np.clip(boxes, 0, np.float32(view.size * 2)),
      'labels': objects.labels[kept],
      'valid': np.ones(len(kept), bool),
  }
  if mask_crop:
    crops = [
        crop(objects.masks[row], stored[1], seen[row], mask_crop)
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
