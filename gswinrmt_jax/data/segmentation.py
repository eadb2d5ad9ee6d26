"""Segmentation: stored records, and random crops or whole images of them.

As in mmsegmentation, with two differences: downscaling is antialiased, and
labels are sampled at the centre of each new pixel, aligned with the image,
rather than half a pixel to the upper left.
"""

from collections.abc import Iterator
import dataclasses
import hashlib
import io
from typing import Any

import numpy as np
import PIL.Image

from gswinrmt_jax.data import pictures, records, resizing, sources
from gswinrmt_jax.errors import UserError

MASK = 'segmentation_mask'  # TFDS's feature with the class of each pixel

_TRIES = 11  # crops drawn; the last is accepted as it is
_STRIDE = 32  # of the last feature map; a model needs sides of at least this


@dataclasses.dataclass(frozen=True)
class Crop:
  """Random crop of an image and its label, for training.

  Attributes:
    size: Height and width of the crop in pixels. If the image is smaller, it is
      padded at the bottom and on the right.
    scale: Smallest and largest factor by which the image is resized.
    max_class_share: Limit on the share of one class among the pixels that have
      a class; 1 accepts any crop.
    flip: Whether half of the crops are flipped left to right.
    flip_vertical: Whether half of the crops are flipped top to bottom.
  """

  size: tuple[int, int]
  scale: tuple[float, float] = (0.5, 2.0)
  max_class_share: float = 0.75
  flip: bool = True
  flip_vertical: bool = False


class SegmentationSource(sources.TfdsSource):
  """A split of a prepared segmentation data set.

  Attributes:
    label_checksum: Of the label files and of the values of classes and of no
      class; '' for a set that was prepared without it.
  """

  feature = MASK

  def __init__(self, builder: Any, split: str):
    """Opens a split, as `TfdsSource` does."""
    super().__init__(builder, split)
    said = builder.info.metadata
    self._coding = pictures.LabelCoding(
        self._classes,
        said.get('void'),
        said.get('zero_is_void', False),
        said.get('values') or (),
    )
    known = said.get('labels', '')
    self.label_checksum = (
        known and hashlib.sha256(f'{known} {self._coding}'.encode()).hexdigest()
    )

  def sizes(self) -> Iterator[tuple[int, int]]:
    """Yields width and height of all records, from headers alone."""
    for row in range(len(self)):
      # The label's size: the image may have to be rotated.
      with PIL.Image.open(io.BytesIO(self._record(row)[MASK])) as label:
        yield label.size

  def stored(self, row: int) -> bytes:
    """Returns the encoded image; `label_checksum` is of the label images."""
    return self._record(row)['image']

  def _read_label(self, record, name):
    try:
      return pictures.open_label(record[MASK], self._coding)
    except ValueError as error:
      raise UserError(f'{name}: its label image {error}') from error


def has_labels(source: sources.Source) -> bool:
  """Returns whether any pixel has a class; usually reads one record.

  Raises:
    UserError: If a record is damaged.
  """
  return any((x != pictures.VOID).any() for _, x in source.described())


class SegmentedImages(records.OnTheFly):
  """Records for segmentation.

  Attributes:
    source: The records as they are stored.
    image_size: Maximum long and maximum short side of resized images, in
      pixels; None keeps their size.
    training: The crops for training; None for whole images.
    workers: Processes that decode training batches; 0 for threads.
    num_classes: Number of classes, to check labels by; None does not.
    image_shape: Height, width and channels of an image in a batch. Whole images
      are padded to the largest height and width in the split, at least 32. If
      their sizes differ, each is rounded up to a multiple of 32.
    label_shape: Height and width of a label in a batch. Labels of whole images
      keep their stored size, and are padded likewise.
  """

  def __init__(
      self,
      source: sources.Source,
      image_size: tuple[int, int] | None = None,
      training: Crop | None = None,
      workers: int = 0,
      num_classes: int | None = None,
  ):
    self.source, self.image_size, self.training = source, image_size, training
    self.workers, self.num_classes = workers, num_classes
    if training:
      self.image_shape, self.label_shape = (*training.size, 3), training.size
      return
    stored = {*source.sizes()}
    resized = {resizing.size_within(size, image_size) for size in stored}
    self.image_shape, self.label_shape = (*_around(resized), 3), _around(stored)

  @property
  def is_random(self) -> bool:
    """Whether records are cropped at random, for training."""
    return self.training is not None

  def load(self, row: int) -> tuple[PIL.Image.Image, np.ndarray]:
    """Returns image and label of a record, as `OnTheFly.load`.

    Raises:
      UserError: Also if the label has another size than the image, or a pixel
        has a label that is none of the classes.
    """
    image, label = super().load(row)
    shape = image.height, image.width
    if label.shape != shape:
      raise UserError(
          f'{self.source.name(row)} has a label of the shape {label.shape}: '
          f'must be {shape}, the height and width of its image'
      )
    records.check_labels(
        label, self.num_classes, self.source, row, pictures.VOID
    )
    return image, label

  def convert(
      self,
      image: PIL.Image.Image,
      label: np.ndarray,
      rng: np.random.Generator | None,
  ) -> records.Batch:
    """Returns the arrays of a record.

    Returns:
      'image' uint8 [h w 3], 'label' uint8 [H W] and 'extents' int32 [2], height
      and width of the image without padding. If whole images are resized, their
      labels are not, and 'label_extents' are those of the label. Padding is
      black and has the label `pictures.VOID`, as pixels without a class do.
    """
    if self.training:
      pixels, label = random_crop(
          image, label, self.image_size, self.training, rng
      )
    else:
      pixels = resizing.resize(
          image, resizing.size_within(image.size, self.image_size)
      )
    record = {
        'image': np.zeros(self.image_shape, np.uint8),
        'label': np.full(self.label_shape, pictures.VOID, np.uint8),
        'extents': np.array(pixels.shape[:2], np.int32),
    }
    if self.image_size and not self.training:
      record['label_extents'] = np.array(label.shape, np.int32)
    for name, array in (('image', pixels), ('label', label)):
      height, width = array.shape[:2]
      record[name][:height, :width] = array
    return record


def _around(sizes):
  """Returns height and width of the batch for images of these (w, h)."""
  multiple = _STRIDE if len(sizes) > 1 else 1
  sides = np.maximum(np.max([*sizes], 0), _STRIDE)
  width, height = (-(-sides // multiple) * multiple).tolist()
  return height, width


def resize_label(label: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Resizes a label `[h w]` to a width and height, without interpolation.

  A new pixel has the class of the old pixel that contains its centre.
  """
  columns, rows = (
      (2 * np.arange(new) + 1) * old // (2 * new)
      for old, new in zip(label.shape[::-1], size, strict=True)
  )
  return label[np.ix_(rows, columns)]


def random_crop(
    image: PIL.Image.Image,
    label: np.ndarray,
    image_size: tuple[int, int] | None,
    crop: Crop,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
  """Randomly resizes, crops and flips an image and its label `[h w]`.

  Crops are redrawn while one class has too large a share of the pixels; after
  ten such crops, the next is accepted as it is. `image_size` is `within` of
  `resizing.size_within`.

  Returns:
    uint8 `[y x 3]` and `[y x]`, at most of the crop's size.
  """
  low, high = crop.scale
  size = resizing.size_within(
      image.size, image_size, low + (high - low) * rng.random()
  )
  whole = resize_label(label, size)
  for _ in range(_TRIES):
    left, top, right, bottom = box = _draw_box(size, crop.size, rng)
    label = whole[top:bottom, left:right]
    limit = crop.max_class_share
    if limit >= 1 or largest_share(label) < limit:
      break
  image = resizing.resize(image, size, box)
  if crop.flip and rng.random() < 0.5:
    image, label = image[:, ::-1], label[:, ::-1]
  if crop.flip_vertical and rng.random() < 0.5:
    image, label = image[::-1], label[::-1]
  return image, label


def _draw_box(size, crop, rng):
  """Returns left, top, right and bottom of a uniformly placed crop."""
  (width, height), (down, across) = size, crop
  top = rng.integers(max(height - down, 0) + 1)
  left = rng.integers(max(width - across, 0) + 1)
  return left, top, min(left + across, width), min(top + down, height)


def largest_share(label: np.ndarray) -> float:
  """Returns the largest class's share of the pixels with a class, 1 if none."""
  counts = np.bincount(label.ravel(), minlength=256)[: pictures.VOID]
  return counts.max() / counts.sum() if counts.any() else 1.0
