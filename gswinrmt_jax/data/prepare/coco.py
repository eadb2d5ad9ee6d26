"""Boxes and masks of objects in COCO's JSON: read, checked, found by image."""

from collections import Counter, defaultdict
from collections.abc import Mapping
import hashlib
import json
import math
import pathlib
from typing import Any, NamedTuple

from gswinrmt_jax.data import image_paths
from gswinrmt_jax.data.collection import Collection, UNDIVIDED
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import side_files
from gswinrmt_jax.data.prepare.object_labels import Found, ObjectLabels
from gswinrmt_jax.errors import UserError

_CORNERS = 'so many suggest corners x0 y0 x1 y1 instead of x y w h'


class _File(NamedTuple):
  """A JSON file of COCO, in which every id that is referred to exists.

  Attributes:
    path: The file.
    checksum: Of its content.
    images: Its entries of images, not empty.
    annotations: Its entries of objects.
    categories: Names of the classes by id, in order.
  """

  path: pathlib.Path
  checksum: str
  images: list[dict[str, Any]]
  annotations: list[dict[str, Any]]
  categories: dict[Any, str]


def find(
    root: pathlib.Path, paths: Mapping[str, pathlib.Path], ignored: Counter
) -> Collection:
  """Returns the images below `root` that files of COCO describe.

  Args:
    root: Folder of the images.
    paths: The file of each split; of 'train' alone, it is `UNDIVIDED`.
    ignored: Counts what is passed over.

  Raises:
    UserError: If a file cannot be used, or files and images do not go together.
  """
  there = [image.file_name for image in image_paths.find(root, '', ignored)]
  files = {split: _read(path) for split, path in paths.items()}
  categories = files['train'].categories
  splits, entries, objects, missing = {}, {}, defaultdict(list), {}
  for split, file in files.items():
    for number in categories | file.categories:
      here, in_train = file.categories.get(number), categories.get(number)
      if here != in_train:
        raise UserError(
            f'{file.path} has other categories than {paths["train"]}: the id '
            f'{number!r} is {here or "none"} here, {in_train or "none"} there'
        )
    given = [image['file_name'] for image in file.images]
    found = side_files.located(given, root, there, file.path)
    names = {i['id']: found.get(i['file_name']) for i in file.images}
    for image in file.images:
      name = names[image['id']]
      if name in entries:
        raise UserError(
            f'{file.path}: {image["file_name"]} is there twice, or in another '
            'file'
        )
      if name:
        entries[name] = image.get('width'), image.get('height'), file.path
      else:
        missing[image['file_name']] = f'is in {file.path}, but not in {root}'
    splits[split] = [ImageFile(name, 0) for name in names.values() if name]
    for annotation in file.annotations:
      if name := names[annotation['image_id']]:
        objects[name].append(annotation)
  labels = {number: label for label, number in enumerate(categories)}

  def read(image, size):
    width, height, path = entries[image.file_name]
    if None not in (width, height):
      side_files.check_size(size, (width, height), path)
    return [_found(each, labels) for each in objects[image.file_name]]

  ignored['images that are not in the files'] += len(there) - len(entries)
  if len(splits) == 1:
    splits = {UNDIVIDED: splits['train']}
  return Collection(
      root,
      tuple(categories.values()),
      splits,
      ignored,
      source={
          'boxes': {split: str(path) for split, path in paths.items()},
          'content of boxes': {
              split: file.checksum for split, file in files.items()
          },
      },
      labels=ObjectLabels(read, len(labels), {'cut': _CORNERS}),
      unpaired=missing,
  )


def _read(path):
  """Reads a file of COCO.

  Raises:
    UserError: If it is none, or its entries do not go together.
  """
  try:
    content = path.read_bytes()
    parts = json.loads(content)
    images, annotations = parts['images'], parts['annotations']
    categories = sorted(parts['categories'], key=lambda each: each['id'])
    numbered = [each for each in annotations if each.get('id') is not None]
    for what, entries in (
        ('images', images),
        ('categories', categories),
        ('annotations', numbered),
    ):
      ids = Counter(each['id'] for each in entries)
      if len(ids) < len(entries):
        twice = ids.most_common(1)[0][0]
        raise UserError(f'{path}: two {what} have the id {twice!r}')
    names = {
        each['id']: '' if each['name'] is None else str(each['name'])
        for each in categories
    }
    # A file name that is no text raises TypeError here.
    known = {e['id']: image_paths.composed(e['file_name']) for e in images}
    boxes = [each['bbox'] for each in annotations]
    for each in annotations:
      which = f'{path}: annotation {each.get("id")}'
      if each['image_id'] not in known or each['category_id'] not in names:
        raise UserError(
            f'{which} is of image {each["image_id"]!r} and category '
            f'{each["category_id"]!r}, which are not both in the file'
        )
      for flag in ('iscrowd', 'ignore'):  # As text, all would count as set.
        if each.get(flag) not in (None, 0, 1):
          raise UserError(f'{which}: {flag} must be 0 or 1: {each[flag]!r}')
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error
  except ValueError as error:
    raise UserError(f'{path} is not JSON: {error}') from error
  except (AttributeError, LookupError, TypeError) as error:
    raise UserError(
        f'{path} is not in the format of COCO, with images, annotations and '
        f'categories: {error!r}'
    ) from error
  if not images or not names:
    raise UserError(f'{path} has no images, or no categories')
  # Files that have masks alone may have boxes of zeros.
  if all(map(_is_share, boxes)) and any(map(any, boxes)):
    raise UserError(
        f"{path}: boxes are shares of the image; COCO's are in pixels"
    )
  checksum = hashlib.sha256(content).hexdigest()
  return _File(path, checksum, images, annotations, names)


def _four(box):
  """Returns x, y, w and h; None if they are not four finite numbers."""
  try:
    x, y, width, height = values = tuple(map(float, box))
  except (ValueError, TypeError, OverflowError):
    return None
  return (x, y, width, height) if all(map(math.isfinite, values)) else None


def _is_share(box):
  return all(abs(value) <= 1 for value in _four(box) or [math.inf])


def _found(annotation, labels):
  which = f'annotation {annotation.get("id")}'
  box, area = annotation['bbox'], annotation.get('area')
  if not (four := _four(box)):
    raise ValueError(f'{which}: bbox must be four numbers x y w h, not {box!r}')
  x, y, width, height = four
  if width < 0 or height < 0:
    raise ValueError(
        f'{which}: bbox x y w h has a negative width or height: {box!r}'
    )
  try:
    area = 0.0 if area is None else float(area)
  except (ValueError, TypeError, OverflowError):
    area = math.nan
  if not 0 <= area < math.inf:  # COCO's score would ignore the object.
    raise ValueError(
        f'{which}: area must be a finite number, 0 or more: '
        f'{annotation["area"]!r}'
    )
  box = left, top, right, bottom = x, y, x + width, y + height
  mask = annotation.get('segmentation')
  if annotation.get('ignore') and not mask:
    mask = [[left, top, right, top, right, bottom, left, bottom]]
  return Found(
      labels[annotation['category_id']],
      box,
      bool(annotation.get('iscrowd') or annotation.get('ignore')),
      area or None,  # Some tools write 0 throughout.
      mask,
      which,
  )
