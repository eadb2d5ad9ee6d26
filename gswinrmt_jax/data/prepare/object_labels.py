"""Objects as the labels of a data set: checked, counted, reported, stored."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import hashlib
import math
import re
import reprlib
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
from gswinrmt_jax.terminal import counted

Size = tuple[int, int]  # width and height in pixels

_NAMED = 10  # most classes whose objects a report counts by name
# What is reported of odd boxes; `{}` is their number.
_ODD = {
    'empty': '{} without width or height, left out',
    'outside': '{} outside of the image, left out',
    'cut': '{} beyond the border of the image, cut off there',
    'elsewhere': '{} elsewhere than the mask of the object',
}
_MISPLACED = (
    'boxes must be x y w h in pixels, and masks those of the same objects'
)
_MANY = 0.1  # Share of boxes beyond their image from which they seem mistaken.
_OVERLAP = 0.5  # IoU of a box and its mask below which they contradict.
_SMALL = 2  # Side of a box in pixels below which masks are too coarse for that.
# COCO's compressed runs. A number has six bits a character; the sixth says that
# another follows. pycocotools reads beyond a string that ends within a number.
_CODED = re.compile('(?:[P-o]*[0-O])*')
_FAR = 1e6  # Largest coordinate of a polygon: pycocotools crashes at 1e9.
_FORM = (
    'a segmentation must be a list of polygons [[x0, y0, x1, y1, ...], ...] or '
    'an object with size [height, width] and counts'
)


class Found(NamedTuple):
  """An object as its file has it.

  Attributes:
    label: Its class.
    box: x0 y0 x1 y1 in pixels.
    crowd: As in `detection.Objects`.
    area: In square pixels; None for that of the mask, or without one, of the
      box.
    mask: Polygons, or runs, as in COCO; None if there is none.
    which: How messages name it.
  """

  label: int
  box: tuple[float, float, float, float]
  crowd: bool = False
  area: float | None = None
  mask: Any = None
  which: str = 'an object'


class ObjectLabels(ClassLabels):
  """The objects of images, in files of any kind.

  Attributes:
    read: Returns the objects of an image, given its size. It raises ValueError
      if they cannot be used; the message says why.
    num_classes: Number of classes.
    masks: Whether every object has a mask, and masks are stored; see `check`.
    hints: What it suggests of boxes that are `outside` or `elsewhere`, and,
      unless masks show where objects are, of many that are `cut`.
  """

  by_class = False

  def __init__(
      self,
      read: Callable[[ImageFile, Size], Sequence[Found]],
      num_classes: int,
      hints: Mapping[str, str] | None = None,
  ):
    self.read, self.num_classes, self.masks = read, num_classes, False
    self.hints = {**(hints or {}), 'elsewhere': _MISPLACED}
    self.findings = (
        ('seen', 'i4', (2,)),  # width and height, as EXIF turns the image
        ('objects', 'O'),  # `detection.Objects`
        *((name, 'i4') for name in _ODD),
        ('masked', '?'),  # whether an object that is no crowd has a mask
    )

  def objects(
      self, image: ImageFile, size: Size
  ) -> tuple[detection_lib.Objects, Counter]:
    """Returns the objects of an image within it.

    Returns:
      The objects; how many are `_ODD`, and whether they are `masked`.

    Raises:
      ValueError: If they cannot be used.
    """
    kept, odd = [], Counter()
    for found in self.read(image, size):
      if not all(map(math.isfinite, found.box)):
        raise ValueError(f'has a box that is not finite, {found.box}')
      low, high = found.box[:2], found.box[2:]
      if high[0] <= low[0] or high[1] <= low[1]:
        odd['empty'] += 1
        continue
      cut = np.clip(found.box, 0, size * 2)
      if (cut[2:] <= cut[:2]).any():
        odd['outside'] += 1
        continue
      # Less than a pixel may be rounding.
      odd['cut'] += bool((np.abs(cut - found.box) > 1).any())
      kept.append(found._replace(box=tuple(cut.tolist())))
    boxes = np.array([found.box for found in kept], np.float64).reshape(-1, 4)
    sides = boxes[:, 2:] - boxes[:, :2]
    areas, masks = sides.prod(1), None
    if all(found.mask for found in kept):
      masks = tuple(_runs(found, size) for found in kept)
      areas = [runs[1::2].sum() for runs in masks]
    areas = [
        area if found.area is None else found.area
        for found, area in zip(kept, areas, strict=True)
    ]
    objects = detection_lib.Objects(
        boxes.astype(np.float32),
        np.array([found.label for found in kept], np.int32),
        np.array([found.crowd for found in kept], bool),
        np.array(areas, np.float64),
        masks,
    )
    odd['elsewhere'] = _elsewhere(objects, size)
    # Regions to ignore may have the mask of their box.
    odd['masked'] = any(found.mask and not found.crowd for found in kept)
    return objects, odd

  def inspect(self, image: ImageFile, picture: PIL.Image.Image) -> tuple:
    """Returns the objects, and what is odd about them, see `findings`."""
    objects, odd = self.objects(image, picture.size)
    numbers = (odd[name] for name in (*_ODD, 'masked'))
    return picture.size, objects, *numbers

  def check(self, collection: Collection, table: np.ndarray) -> None:
    """Finds whether every object has a mask; notes if only some have.

    Refuses images of which no image for training has an object, and boxes of
    which more than half contradict their masks.

    Raises:
      UserError: See above.
    """
    train = table[: len(collection.splits['train'])]
    if all(objects.crowds.all() for objects in train['objects']):
      crowds = sum(len(objects.crowds) for objects in train['objects'])
      said = [counted(crowds, 'crowd')] * bool(crowds)
      for name in ('empty', 'outside'):
        if count := int(train[name].sum()):
          said.append(_ODD[name].format(counted(count, 'box', 'boxes')))
      if train['outside'].any() and 'outside' in self.hints:
        said.append(self.hints['outside'])
      why = f': {"; ".join(said)}' * bool(said)
      raise UserError(f'no image of train has an object{why}')
    elsewhere = _where(collection.images, table['elsewhere'])
    total = sum((~objects.crowds).sum() for objects in table['objects'])
    if 2 * elsewhere['count'] > total:
      raise UserError(f'{_said("elsewhere", elsewhere)}: {_MISPLACED}')
    pairs = zip(collection.images, table['objects'], strict=True)
    without = [i.file_name for i, objects in pairs if objects.masks is None]
    self.masks = not without
    if without and table['masked'].any():
      collection.notes.append(
          'warning: some objects have no mask: none are stored; '
          f'{without[0]} has an object without one'
      )

  def counts(
      self, collection: Collection, split: str, table: np.ndarray
  ) -> dict[str, Any]:
    """Returns the numbers of objects in a split."""
    images, objects = collection.splits[split], table['objects']
    numbers = np.array([len(each.labels) for each in objects])
    parts = zip(*(each[:3] for each in objects), strict=True)
    boxes, labels, crowds = map(np.concatenate, parts)
    sides = (boxes[:, 2:] - boxes[:, :2])[~crowds]
    sides = np.sqrt(sides.prod(1)).tolist()
    by_class, crowds = (
        np.bincount(each, minlength=self.num_classes).tolist()
        for each in (labels, labels[crowds])
    )
    return {
        'objects_by_class': by_class,
        'crowds_by_class': crowds,
        'most_objects': int(numbers.max()),
        'without_objects': _where(images, numbers == 0),
        'masks': self.masks,
        'sides': summary(sides) if sides else None,
        'odd': {name: _where(images, table[name]) for name in _ODD},
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
      if count := sum(found['crowds_by_class']):
        yield f'  {split}: of them {counted(count, "crowd")}, not trained on'
      if sides := found['sides']:
        said = ' / '.join(f'{side:,.1f}' for side in sides.values())
        yield (
            f'  {split}: sides of boxes {said} pixels (smallest / median / '
            'largest root of the area)'
        )
      if count := found['without_objects']['count']:
        yield (
            f'  {split}: {counted(count, "image")} without objects, kept, '
            f'the first {found["without_objects"]["first"]}'
        )
      for name, odd in found['odd'].items():
        hint = self.hints.get(name)
        # Masks show better than borders whether boxes are where objects are.
        if name == 'cut' and (masks or odd['count'] <= _MANY * total):
          hint = None
        if odd['count']:
          text = f'{split}: {_said(name, odd)}'
          yield f'  warning: {text}: {hint}' if hint else f'  {text}'
    if report['splits']['train']['sides']:
      yield '  training prints the sides after resizing (see anchor_scale)'
    train = report['splits']['train']
    counts = train['objects_by_class'], train['crowds_by_class']
    for name, count, crowds in zip(names, *counts, strict=True):
      if count == crowds:
        but = ' but crowds, which are not trained on' if crowds else ''
        yield f'  warning: class {name!r} has no objects in train{but}'

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
    objects = table['objects']
    if not self.masks:
      objects = [each._replace(masks=None) for each in objects]
    digests = np.array([*map(_digest, objects)], np.uint64)
    return {
        'labels': hashlib.sha256(digests.tobytes()).hexdigest(),
        'masks': self.masks,
    }

  def example(self, image: ImageFile, finding: np.void) -> dict[str, Any]:
    """Returns the values of `features` for an image."""
    objects = finding['objects']
    values = {
        detection_lib.LABELS: objects.labels.tolist(),
        'boxes': objects.boxes,
        'crowds': objects.crowds,
        'areas': objects.areas,
        'stored_size': finding['seen'],
    }
    if self.masks:
      values['runs'] = np.concatenate([np.zeros(0, np.int32), *objects.masks])
      counts = [len(runs) for runs in objects.masks]
      values['run_counts'] = np.array(counts, np.int32)
    return values


def _digest(objects):
  arrays = [objects.boxes, objects.labels, objects.crowds, objects.areas]
  content = b''.join(x.tobytes() for x in (*arrays, *(objects.masks or ())))
  return image_paths.digest(content)


def _where(images, counts):
  """Returns the sum of the images' counts, and the first that has any."""
  found = np.flatnonzero(counts)
  first = images[found[0]].file_name if len(found) else None
  return {'count': int(counts.sum()), 'first': first}


def _said(name, odd):
  """Returns the text on odd boxes, given what `_where` returns."""
  boxes = counted(odd['count'], 'box', 'boxes')
  return f'{_ODD[name].format(boxes)}, the first in {odd["first"]}'


def _elsewhere(objects, size):
  """Returns how many boxes contradict their masks.

  Crowds and small boxes are not compared. A box goes with its mask if it
  overlaps the mask's bounding box, or if their sides are a pixel apart at most.
  """
  if not objects.masks:
    return 0
  width, height = size
  coder = detection_lib.pycocotools('mask')
  runs = [
      {'size': [height, width], 'counts': counts.tolist()}
      for counts in objects.masks
  ]
  coded = coder.frPyObjects(runs, height, width)
  boxes, around = objects.boxes, coder.toBbox(coded)
  around[:, 2:] += around[:, :2]  # was x y w h
  shared = np.minimum(boxes[:, 2:], around[:, 2:])
  shared = (shared - np.maximum(boxes[:, :2], around[:, :2])).clip(0).prod(1)
  areas = ((each[:, 2:] - each[:, :2]).prod(1) for each in (boxes, around))
  apart = shared < _OVERLAP * (sum(areas) - shared)
  apart &= (np.abs(boxes - around) > 1).any(1)
  large = (boxes[:, 2:] - boxes[:, :2]).min(1) >= _SMALL
  return int((apart & large & ~objects.crowds).sum())


def _runs(found, size):
  """Returns polygons or COCO's runs as the runs of `detection.Objects`.

  Raises:
    ValueError: If they are no mask of an image of this width and height.
  """
  width, height = size
  mask, coder = found.mask, detection_lib.pycocotools('mask')
  try:
    if isinstance(mask, list) and all(isinstance(x, list) for x in mask):
      polygons = [*map(_polygon, mask)]
      coded = coder.merge(coder.frPyObjects(polygons, height, width))
      return detection_lib.runs(coder.decode(coded))
    match mask:
      case {'size': [down, across], 'counts': list() | str() as counts}:
        pass
      case _:
        raise ValueError(f'{_FORM}, not {reprlib.repr(mask)}')
    if (across, down) != size:
      raise ValueError(f'it has {across} x {down} pixels')
    if isinstance(counts, str):
      coded = {'size': [height, width], 'counts': counts.encode()}
      pixels = coder.decode(coded) if _CODED.fullmatch(counts) else None
      # Of runs that end within the image, the rest is what was in memory.
      if pixels is None or coder.encode(pixels) != coded:
        raise ValueError('its runs are damaged')
      return detection_lib.runs(pixels)
    if not all(isinstance(count, int) for count in counts):
      raise ValueError('its counts are not whole numbers')
    if min(counts, default=0) < 0 or sum(counts) != width * height:
      raise ValueError(f'its runs have {sum(counts):,} pixels')
    return np.array(counts, np.int32)
  except (ValueError, TypeError, KeyError, AttributeError) as error:
    raise ValueError(
        f'{found.which} has a mask that cannot be used: {error}'
    ) from error


def _polygon(values):
  """Returns x and y of the points of a polygon in turn, as numbers."""
  numbers = np.array(values, float)
  near = (abs(numbers) <= _FAR).all()  # NaN is not
  if not near or numbers.ndim > 1 or len(numbers) % 2 or len(numbers) < 6:
    raise ValueError(
        'a polygon must be x and y of at least three points, in pixels up to a '
        f'million, not {reprlib.repr(values)}'
    )
  return numbers.tolist()
