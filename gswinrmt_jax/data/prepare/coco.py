"""Boxes and masks of objects in COCO's JSON: read, checked, found by image."""

from collections import Counter, defaultdict
from collections.abc import Mapping
import hashlib
import json
import math
import os
import pathlib
from typing import Any, NamedTuple

from gswinrmt_jax.data import image_paths
from gswinrmt_jax.data.collection import Collection, UNDIVIDED
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import side_files
from gswinrmt_jax.data.prepare.object_labels import Found, ObjectLabels
from gswinrmt_jax.errors import UserError

_ID = int | float | str
# COCO's lists, and the fields of their entries that are read; a box and a name
# are checked where they are used.
_FIELDS = {
    'images': {'id': _ID, 'file_name': str},
    'categories': {'id': _ID, 'name': object},
    'annotations': {'image_id': _ID, 'category_id': _ID, 'bbox': object},
}
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
    names = _file_names(file, root, there)
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


def _file_names(file, root, there):
  """Returns where each image of a file of COCO is, by id; None if it is not.

  `there` are the names of all images. The paths in the file are those below
  `root` or beside the file. If none of them is there, the images were moved,
  and each is the only one of `there` with the same last part.
  """
  known, by_name, names = {}, defaultdict(list), {}
  for name in there:
    path = image_paths.composed(name)
    known[path] = [name]
    by_name[os.path.basename(path)].append(name)
  found_by_id = {}
  for image in file.images:
    name = image_paths.composed(image['file_name'])
    unix = name.replace('\\', '/')  # A path of Windows is read as one of Unix.
    below = os.path.normpath(unix)
    beside = os.path.relpath(os.path.join(file.path.parent, unix), root)
    near = image_paths.composed(beside)
    found = known.get(name) or known.get(below) or known.get(near, [])
    found_by_id[image['id']] = name, os.path.basename(unix), found
  moved = not any(found for *_, found in found_by_id.values())
  for number, (name, last, found) in found_by_id.items():
    if moved:
      found = by_name[last]
    if len(found) > 1:
      raise UserError(f'{file.path}: {name} may be {found[0]} or {found[1]}')
    names[number] = found[0] if found else None
  return names


def _read(path):
  """Reads a file of COCO.

  Raises:
    UserError: If it is none, or its entries do not go together.
  """
  try:
    content = path.read_bytes()
    parts = json.loads(content)
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'{path} is not JSON: {error}') from error
  _check_fields(path, parts)
  images, annotations = parts['images'], parts['annotations']
  if not images:
    raise UserError(f'{path} has no images')
  boxes = [each['bbox'] for each in annotations]
  # Files that have masks alone may have boxes of zeros.
  if all(map(_is_share, boxes)) and any(map(any, boxes)):
    raise UserError(
        f"{path}: boxes are shares of the image; COCO's are in pixels"
    )
  # Ids are numbers, but for unusual files; then they are in order as text.
  ordered = sorted(
      parts['categories'],
      key=lambda each: (isinstance(each['id'], str), each['id']),
  )
  categories = {each['id']: str(each['name']) for each in ordered}
  for each in ordered:
    if each['name'] in ('', None):
      raise UserError(
          f'{path}: the category with the id {each["id"]!r} has no name: '
          'give it one'
      )
  twice = [n for n, c in Counter(categories.values()).items() if c > 1]
  if twice or len(categories) < len(ordered) or not categories:
    what = f'the category {twice[0]!r} twice' if twice else 'no or equal ids'
    raise UserError(f'{path} has {what}')
  checksum = hashlib.sha256(content).hexdigest()
  file = _File(path, checksum, images, annotations, categories)
  _check_ids(file)
  return file


def _check_fields(path, parts):
  """Refuses content without COCO's lists, or entries without their fields."""
  if not isinstance(parts, dict):
    raise UserError(
        f'{path} is not in the format of COCO: it must be an object with '
        f'images, annotations and categories, not {type(parts).__name__}'
    )
  for part, kinds in _FIELDS.items():
    if not isinstance(parts.get(part), list):
      wrong = 'is not a list' if part in parts else 'is missing'
      raise UserError(f'{path} is not in the format of COCO: {part!r} {wrong}')
    for place, entry in enumerate(parts[part]):
      if wrong := _wrong_field(entry, kinds):
        number = entry.get('id') if isinstance(entry, dict) else None
        which = f'{part}[{place}]' if number is None else f'{part}, id {number}'
        raise UserError(
            f'{path} is not in the format of COCO: {which}: {wrong}'
        )


def _check_ids(file):
  """Refuses ids that occur twice, and annotations of what is not there.

  Refuses flags that are neither 0 nor 1, too: as text, all would count as set.
  """
  for what, entries in (
      ('images', file.images),
      ('annotations', file.annotations),
  ):
    ids = Counter(entry.get('id') for entry in entries)
    del ids[None]  # Annotations need none.
    number, count = next(iter(ids.most_common(1)), (None, 0))
    if count > 1:
      raise UserError(f'{file.path}: two {what} have the id {number}')
  images = {image['id'] for image in file.images}
  for entry in file.annotations:
    which = f'{file.path}: annotation {entry.get("id")}'
    if entry['image_id'] not in images:
      raise UserError(
          f'{which} is of image {entry["image_id"]!r}, which is not in the file'
      )
    if entry['category_id'] not in file.categories:
      raise UserError(
          f'{which} has the unknown category {entry["category_id"]!r}'
      )
    for flag in ('iscrowd', 'ignore'):
      if entry.get(flag) not in (None, 0, 1):
        raise UserError(
            f'{which}: {flag} must be the number 0 or 1, not {entry[flag]!r}'
        )


def _wrong_field(entry, kinds):
  """Returns what is wrong with an entry of COCO's lists, or None."""
  if not isinstance(entry, dict):
    return f'must be an object, not {entry!r}'
  if isinstance(entry.get('id'), list | dict):
    return f"'id' is {entry['id']!r}"
  for key, kind in kinds.items():
    if key not in entry:
      return f'{key!r} is missing'
    value = entry[key]
    if not isinstance(value, kind):
      return f'{key!r} is {value!r}'
    if kind is str and not image_paths.is_utf8(value):
      return f'{key!r} is not UTF-8: {value!a}'
  return None


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
    raise ValueError(f'{which}: area is not a number: {area!r}') from None
  # COCO's score would ignore the object. Not a number is refused here, too.
  if not 0 <= area < math.inf:
    raise ValueError(f'{which}: area must be finite, and 0 or more: {area!r}')
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
