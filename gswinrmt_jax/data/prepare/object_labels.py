"""Objects as the labels of a data set: checked, counted, reported, stored."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import hashlib
import math
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from gswinrmt_jax.data import detection as detection_lib
from gswinrmt_jax.data import image_paths
from gswinrmt_jax.data.collection import (
    ClassLabels,
    Collection,
    spread,
    summary,
)
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.errors import UserError

Size = tuple[int, int]  # width and height in pixels

_NAMED = 10  # most classes whose objects a report counts by name
# What is reported of boxes that are not in their image; `{}` is their number.
_ODD = {
    'empty': '{} without width or height, left out',
    'outside': '{} outside of the image, left out',
    'cut': '{} beyond the border of the image, cut off there',
}
_MANY = 0.1  # Share of boxes beyond their image from which they seem mistaken.


class Found(NamedTuple):
  """An object as its file has it.

  Attributes:
    label: Its class.
    box: x0 y0 x1 y1 in pixels.
    crowd: As in `detection.Objects`.
    area: In square pixels; None for that of the box.
    mask: Polygons, or runs, as in COCO; None if there is none.
  """

  label: int
  box: tuple[float, float, float, float]
  crowd: bool = False
  area: float | None = None
  mask: Any = None


class ObjectLabels(ClassLabels):
  """The objects of images, in files of any kind.

  Attributes:
    read: Returns the objects of an image, given its size. It raises ValueError
      if they cannot be used; the message says why.
    num_classes: Number of classes.
    masks: Whether to store masks, which then every object has.
    beyond: What it suggests if many boxes extend beyond their image.
  """

  by_class = False

  def __init__(
      self,
      read: Callable[[ImageFile, Size], Sequence[Found]],
      num_classes: int,
      *,
      masks: bool = False,
      beyond: str = '',
  ):
    self.read, self.num_classes, self.masks = read, num_classes, masks
    self.beyond = beyond
    self.findings = (
        ('object_digest', 'u8'),
        ('objects_by_class', 'i4', (num_classes,)),
        ('crowds', 'i4'),
        ('sides', 'O'),  # of all boxes: sqrt(width height), without crowds
        *((name, 'i4') for name in _ODD),
        ('beyond', 'i4'),  # of those cut, by more than a pixel
    )

  def objects(
      self, image: ImageFile, size: Size
  ) -> tuple[detection_lib.Objects, Counter]:
    """Returns the objects of an image within it, and how many are `_ODD`.

    Raises:
      ValueError: If they cannot be used.
    """
    kept, odd = [], Counter()
    for found in self.read(image, size):
      if not all(map(math.isfinite, found.box)):
        raise ValueError(f'has the box {found.box}')
      low, high = found.box[:2], found.box[2:]
      if high[0] <= low[0] or high[1] <= low[1]:
        odd['empty'] += 1
        continue
      cut = np.clip(found.box, 0, size * 2)
      if (cut[2:] <= cut[:2]).any():
        odd['outside'] += 1
        continue
      odd['cut'] += bool((cut != found.box).any())
      odd['beyond'] += bool((np.abs(cut - found.box) > 1).any())
      kept.append(found._replace(box=tuple(cut.tolist())))
    boxes = np.array([found.box for found in kept], np.float64).reshape(-1, 4)
    sides = boxes[:, 2:] - boxes[:, :2]
    areas = [
        area if found.area is None else found.area
        for found, area in zip(kept, sides.prod(1), strict=True)
    ]
    objects = detection_lib.Objects(
        boxes.astype(np.float32),
        np.array([found.label for found in kept], np.int32),
        np.array([found.crowd for found in kept], bool),
        np.array(areas, np.float64),
        tuple(_runs(found.mask, size) for found in kept)
        if self.masks
        else None,
    )
    return objects, odd

  def inspect(self, image: ImageFile, picture: PIL.Image.Image) -> tuple:
    """Returns a digest of the objects and their numbers, see `findings`."""
    objects, odd = self.objects(image, picture.size)
    arrays = [objects.boxes, objects.labels, objects.crowds, objects.areas]
    content = b''.join(x.tobytes() for x in (*arrays, *(objects.masks or ())))
    boxes = objects.boxes[~objects.crowds]
    return (
        image_paths.digest(content),
        np.bincount(objects.labels, minlength=self.num_classes),
        objects.crowds.sum(),
        np.sqrt((boxes[:, 2:] - boxes[:, :2]).prod(1)).tolist(),
        *(odd[name] for name in (*_ODD, 'beyond')),
    )

  def check(self, collection: Collection, table: np.ndarray) -> None:
    """Refuses images of which no image for training has an object.

    Raises:
      UserError: See above.
    """
    train = table[: len(collection.splits['train'])]
    if not train['objects_by_class'].sum() - train['crowds'].sum():
      raise UserError('no image of train has an object')

  def counts(
      self, collection: Collection, split: str, table: np.ndarray
  ) -> dict[str, Any]:
    """Returns the numbers of objects in a split."""
    del collection, split
    by_class = table['objects_by_class']
    sides = [side for of_image in table['sides'] for side in of_image]
    return {
        'objects_by_class': by_class.sum(0).tolist(),
        'crowds': int(table['crowds'].sum()),
        'most_objects': int(by_class.sum(1).max(initial=0)),
        'without_objects': int((by_class.sum(1) == 0).sum()),
        'masks': self.masks,
        'sides': summary(sides) if sides else None,
        'odd': {name: int(table[name].sum()) for name in _ODD},
        'beyond': int(table['beyond'].sum()),
    }

  def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines on objects of the printed report."""
    names = report['class_names']
    for split, found in report['splits'].items():
      by_class, masks = found['objects_by_class'], found['masks']
      if len(names) <= _NAMED:
        pairs = zip(names, by_class, strict=True)
        classes = ', '.join(f'{name} {count:,}' for name, count in pairs)
      else:
        classes = f'of a class (fewest / median / most) {spread(by_class)}'
      total = sum(by_class)
      yield (
          f'  {split}: {counted(total, "object")}'
          f'{" with masks" * masks}, at most {found["most_objects"]:,} '
          f'in an image; {classes}'
      )
      if sides := found['sides']:
        said = ' / '.join(f'{side:,.1f}' for side in sides.values())
        yield (
            f'  {split}: sides of boxes {said} pixels (smallest / median / '
            'largest root of the area)'
        )
      if count := found['without_objects']:
        yield f'  {split}: {counted(count, "image")} without objects, kept'
      if count := found['crowds']:
        yield f'  {split}: {counted(count, "crowd")}, not trained on'
      for name, count in found['odd'].items():
        many = name == 'cut' and found['beyond'] > _MANY * total
        if count:
          text = _ODD[name].format(counted(count, 'box', 'boxes'))
          yield f'  {split}: {text}{f": {self.beyond}" * many}'
    if report['splits']['train']['sides']:
      yield '  choose detector.anchor_scale by the sides of boxes, once resized'
    train = report['splits']['train']['objects_by_class']
    for name, count in zip(names, train, strict=True):
      if not count:
        yield f'  warning: class {name!r} has no objects in train'

  def features(self, class_names: Sequence[str]) -> dict[str, Any]:
    """Returns the features of TFDS that hold the objects."""
    import tensorflow_datasets as tfds

    def tensor(dtype, *shape):
      return tfds.features.Tensor(shape=shape, dtype=dtype)

    label = tfds.features.ClassLabel(names=class_names)
    features = {
        detection_lib.LABELS: tfds.features.Sequence(label),
        'boxes': tensor(np.float32, None, 4),
        'crowds': tensor(np.bool_, None),
        'areas': tensor(np.float64, None),
        'stored_size': tensor(np.int32, 2),
    }
    if self.masks:
      features['runs'] = tensor(np.int32, None)
      features['run_counts'] = tensor(np.int32, None)
    return features

  def metadata(self, table: np.ndarray) -> dict[str, Any]:
    """Returns a checksum of all objects, and whether they have masks."""
    digests = table['object_digest'].tobytes()
    return {
        'labels': hashlib.sha256(digests).hexdigest(),
        'masks': self.masks,
    }

  def example(self, image: ImageFile, finding: np.void) -> dict[str, Any]:
    """Returns the values of `features` for an image."""
    # EXIF may turn an image; its objects are where they are seen.
    size = int(finding['width']), int(finding['height'])
    objects, _ = self.objects(image, size[::-1] if finding['turned'] else size)
    values = {
        detection_lib.LABELS: objects.labels.tolist(),
        'boxes': objects.boxes,
        'crowds': objects.crowds,
        'areas': objects.areas,
        'stored_size': np.array(size, np.int32),
    }
    if self.masks:
      values['runs'] = np.concatenate([np.zeros(0, np.int32), *objects.masks])
      counts = [len(runs) for runs in objects.masks]
      values['run_counts'] = np.array(counts, np.int32)
    return values


def counted(count: int, one: str, more: str = '') -> str:
  """Returns '1 object' or '2 objects'; `more` is an irregular plural."""
  return f'{count:,} {one if count == 1 else more or one + "s"}'


def _runs(mask, size):
  """Returns polygons or COCO's runs as the runs of `detection.Objects`.

  Raises:
    ValueError: If they are no mask of an image of this width and height.
  """
  width, height = size
  coder = detection_lib.pycocotools('mask')
  try:
    if isinstance(mask, list):
      if not all(len(part) >= 6 and len(part) % 2 == 0 for part in mask):
        raise ValueError('a polygon has fewer than three points')
      coded = coder.merge(coder.frPyObjects(mask, height, width))
      return detection_lib.runs(coder.decode(coded))
    down, across = mask['size']
    if (across, down) != size:
      raise ValueError(f'it has {across} x {down} pixels')
    counts = mask['counts']
    if isinstance(counts, list):
      found = np.array(counts, np.int64)
      if found.min(initial=0) < 0 or found.sum() != width * height:
        raise ValueError(f'its runs have {found.sum():,} pixels')
      return found.astype(np.int32)
    return detection_lib.runs(coder.decode({**mask, 'size': [down, across]}))
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise ValueError(f'has a mask that cannot be used: {error}') from error
