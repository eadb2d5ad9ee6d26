"""Boxes and masks of objects in files: COCO's JSON, VOC's XML, YOLO's text."""

from collections import Counter, defaultdict
from collections.abc import Sequence
import hashlib
import json
import math
import os
import pathlib
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from gswinrmt_jax.data import image_paths
from gswinrmt_jax.data.collection import Collection, UNDIVIDED
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import side_files
from gswinrmt_jax.data.prepare.object_labels import (
    counted,
    Found,
    ObjectLabels,
    Size,
)
from gswinrmt_jax.errors import UserError


def find(
    root: pathlib.Path,
    boxes: pathlib.Path,
    *,
    val: pathlib.Path | None = None,
    test: pathlib.Path | None = None,
    classes: pathlib.Path | None = None,
) -> Collection:
  """Returns the images below `root`, with their objects.

  Args:
    root: Folder of the images.
    boxes: A JSON file of COCO; or a folder with a file for each image, VOC's
      XML or YOLO's text, of the same name up to the suffix. Such a folder may
      have train/ and any of val/ and test/, if `root` has them, too.
    val: The images for validation: a JSON file of COCO, or a list of names
      of images, one per line; None if they are not divided, or by folders.
    test: The images for the test, likewise.
    classes: File with the names of the classes, in order, one per line. Needed
      for YOLO's text without a data.yaml; VOC's classes are otherwise in
      alphabetical order.

  Raises:
    UserError: If images, objects and lists do not go together.
  """
  ignored = Counter()
  lists = {'val': val, 'test': test}
  lists = {split: path for split, path in lists.items() if path}
  if boxes.is_file():
    if classes:
      raise UserError('--classes: the file of --boxes has the classes already')
    return _coco(root, {'train': boxes, **lists}, ignored)
  if not boxes.is_dir():
    raise UserError(f'--boxes {boxes}: no such file or folder')
  names = side_files.read_lines('--classes', classes) if classes else ()
  suffixes = Counter(path.suffix.lower() for path in boxes.rglob('*.*'))
  kinds = {'.xml': _VOC, '.txt': _Yolo}
  kind = max(kinds, key=lambda suffix: suffixes[suffix])
  if not suffixes[kind]:
    raise UserError(f'--boxes {boxes} has neither .xml nor .txt files')
  return _by_file(root, boxes, lists, kind, kinds[kind](boxes, names), ignored)


class _Coco(NamedTuple):
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


def _coco(root, paths, ignored):
  """Returns the collection of COCO's JSON files, one for each split."""
  there = [image.file_name for image in image_paths.find(root, '', ignored)]
  files = {split: _read_coco(path) for split, path in paths.items()}
  categories = files['train'].categories
  splits, entries, objects, missing = {}, {}, defaultdict(list), {}
  for split, file in files.items():
    if file.categories != categories:
      raise UserError(f'{file.path} has other categories than {paths["train"]}')
    names = _file_names(file, there)
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
    if not splits[split]:
      raise UserError(
          f'{file.path}: none of its {counted(len(names), "image")} is in '
          f'{root}, the first is {file.images[0]["file_name"]}'
      )
    for annotation in file.annotations:
      name = names[annotation['image_id']]
      if name and not annotation.get('ignore'):
        objects[name].append(annotation)
  labels = {number: label for label, number in enumerate(categories)}

  def read(image, size):
    width, height, path = entries[image.file_name]
    if None not in (width, height):
      _check_size(size, (width, height), path)
    return [_of_coco(each, labels) for each in objects[image.file_name]]

  ignored['images that are not in the files'] += len(there) - len(entries)
  if len(splits) == 1:
    splits = {UNDIVIDED: splits['train']}
  masks, notes = _with_masks(objects)
  return Collection(
      root,
      tuple(categories.values()),
      splits,
      ignored,
      notes=notes,
      source={
          'boxes': {split: str(path) for split, path in paths.items()},
          'content of boxes': {
              split: file.checksum for split, file in files.items()
          },
      },
      labels=ObjectLabels(
          read,
          len(labels),
          masks=masks,
          beyond='so many suggest corners x0 y0 x1 y1 instead of x y w h',
      ),
      unpaired=missing,
  )


def _check_size(size, stated, path):
  """Refuses an image of another width and height than its file states."""
  if size != stated:
    raise ValueError(
        f'has {size[0]} x {size[1]} pixels, in {path} {stated[0]} x {stated[1]}'
    )


def _file_names(file, there):
  """Returns where each image of a file of COCO is, by id; None if it is not.

  `there` are the names of all images. The path in the file may be another one,
  if only one of them has the same last part.
  """
  known, by_name, names = set(there), defaultdict(list), {}
  for name in there:
    by_name[os.path.basename(name)].append(name)
  for image in file.images:
    name = image['file_name']
    found = [name] if name in known else by_name[os.path.basename(name)]
    if len(found) > 1:
      raise UserError(f'{file.path}: {name} may be {found[0]} or {found[1]}')
    names[image['id']] = found[0] if found else None
  return names


def _with_masks(objects):
  """Returns whether all objects have masks; a note if only some have."""
  without = [
      name
      for name, found in objects.items()
      for each in found
      if not each.get('segmentation')
  ]
  total = sum(map(len, objects.values()))
  if not 0 < len(without) < total:
    return total > 0 and not without, []
  return False, [
      f'masks of {total - len(without):,} of {total:,} objects: none stored, '
      f'image {without[0]} has an object without'
  ]


def _read_coco(path):
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
  if annotations and all(_is_share(each['bbox']) for each in annotations):
    raise UserError(
        f"{path}: boxes are shares of the image; COCO's are in pixels"
    )
  # Ids are numbers, but for unusual files; then they are in order as text.
  ordered = sorted(
      parts['categories'],
      key=lambda each: (isinstance(each['id'], str), each['id']),
  )
  categories = {each['id']: str(each['name']) for each in ordered}
  twice = [n for n, c in Counter(categories.values()).items() if c > 1]
  if twice or len(categories) < len(ordered) or not categories:
    what = f'the category {twice[0]!r} twice' if twice else 'no or equal ids'
    raise UserError(f'{path} has {what}')
  checksum = hashlib.sha256(content).hexdigest()
  file = _Coco(path, checksum, images, annotations, categories)
  _check_ids(file)
  return file


def _check_fields(path, parts):
  """Refuses content without COCO's lists, or entries without their fields."""
  if not isinstance(parts, dict):
    raise UserError(
        f'{path} is not as COCO: it must be an object with images, annotations '
        f'and categories, not {type(parts).__name__}'
    )
  fields = {
      'images': ('id', 'file_name'),
      'categories': ('id', 'name'),
      'annotations': ('image_id', 'category_id', 'bbox'),
  }
  for part, keys in fields.items():
    if not isinstance(parts.get(part), list):
      wrong = 'is no list' if part in parts else 'is missing'
      raise UserError(f'{path} is not as COCO: {part!r} {wrong}')
    for place, entry in enumerate(parts[part]):
      if wrong := _wrong_field(entry, keys):
        number = entry.get('id') if isinstance(entry, dict) else None
        which = f'{part}[{place}]' if number is None else f'{part}, id {number}'
        raise UserError(f'{path} is not as COCO: {which}: {wrong}')


def _check_ids(file):
  """Refuses ids that occur twice, and annotations of what is not there."""
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


def _wrong_field(entry, keys):
  """Returns what is wrong with an entry of COCO's lists, or None."""
  if not isinstance(entry, dict):
    return f'must be an object, not {entry!r}'
  if isinstance(entry.get('id'), list | dict):
    return f"'id' is {entry['id']!r}"
  for key in keys:
    if key not in entry:
      return f'{key!r} is missing'
    wanted = str if key == 'file_name' else (int, float, str)
    if key not in ('bbox', 'name') and not isinstance(entry[key], wanted):
      return f'{key!r} is {entry[key]!r}'
  return None


def _four(box):
  """Returns x, y, w and h; None if they are not four numbers."""
  try:
    x, y, width, height = map(float, box)
  except (ValueError, TypeError):
    return None
  return x, y, width, height


def _is_share(box):
  return all(abs(value) <= 1 for value in _four(box) or [math.inf])


def _of_coco(annotation, labels):
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
    area = None if area is None else float(area)
  except (ValueError, TypeError):
    raise ValueError(f'{which}: area is no number: {area!r}') from None
  return Found(
      labels[annotation['category_id']],
      (x, y, x + width, y + height),
      bool(annotation.get('iscrowd')),
      area,
      annotation.get('segmentation'),
  )


class _VOC:
  """Objects in XML files of PASCAL VOC, whose pixels count from 1."""

  optional = False

  def __init__(self, boxes: pathlib.Path, names: Sequence[str]):
    if not names:
      found = set()
      for path in boxes.rglob('*.xml'):
        found |= {name for name, *_ in _voc_objects(_voc_root(path), path)}
      names = sorted(found)
    self.names = tuple(names)

  def read(self, path: pathlib.Path, size: Size) -> list[Found]:
    """Returns the objects in a file; difficult ones count as crowds."""
    root = _voc_root(path)
    width, height = (root.findtext(f'size/{k}') for k in ('width', 'height'))
    stated = tuple(int(side) for side in (width, height) if side)
    if len(stated) == 2 and all(stated):  # Some tools write 0.
      _check_size(size, stated, path)
    found = []
    for name, difficult, box in _voc_objects(root, path):
      if name not in self.names:
        raise ValueError(f'has an object of the unknown class {name!r}')
      if box[2] < box[0] or box[3] < box[1]:
        raise ValueError(
            f'has an object {name!r} with xmin > xmax or ymin > ymax, in {path}'
        )
      # Tools write equal corners for a click, which is no box of one pixel.
      if box[2] > box[0] and box[3] > box[1]:
        box = box[0] - 1, box[1] - 1, box[2], box[3]
      found.append(Found(self.names.index(name), box, difficult))
    return found


def _voc_root(path):
  try:
    return ElementTree.parse(path).getroot()
  except (ElementTree.ParseError, ValueError) as error:
    raise UserError(f'{path} is not XML: {error}') from error
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error


def _voc_objects(root, path):
  """Yields name, whether it is difficult, and corners of each object."""
  for entry in root.iter('object'):
    try:
      corners = [
          float(entry.findtext(f'bndbox/{corner}', 'missing'))
          for corner in ('xmin', 'ymin', 'xmax', 'ymax')
      ]
    except ValueError as error:
      raise UserError(f'{path}: a bndbox is not four numbers') from error
    name = entry.findtext('name', '').strip()
    if not name:
      raise UserError(f'{path}: an object has no name')
    yield name, entry.findtext('difficult', '0').strip() == '1', corners


class _Yolo:
  """Objects in text files of YOLO: class, centre and size as shares."""

  optional = True  # An image without a file has no objects.

  def __init__(self, boxes: pathlib.Path, names: Sequence[str]):
    self.names = tuple(names) or _yaml_names(boxes)

  def read(self, path: pathlib.Path, size: Size) -> list[Found]:
    """Returns the objects in a file."""
    found = []
    try:
      lines = path.read_text('utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
      raise ValueError(f'has {path}, which is not text') from error
    for number, line in enumerate(lines, 1):
      if not line.strip():
        continue
      if len(line.split()) > 5:
        raise ValueError(
            f'has {path}, whose line {number} has more than five numbers: '
            "YOLO's polygons (segmentation) are not read, only its boxes"
        )
      try:
        label, *shares = line.split()
        label, (x, y, width, height) = int(label), map(float, shares)
      except ValueError:
        raise ValueError(
            f'has {path}, whose line {number} is not a class and four shares'
        ) from None
      if width < 0 or height < 0:
        raise ValueError(
            f'has {path}, whose line {number} has a negative width or height'
        )
      if not 0 <= label < len(self.names):
        raise ValueError(f'has an object of class {label}, in {path}')
      corners = x - width / 2, y - height / 2, x + width / 2, y + height / 2
      box = tuple(np.multiply(corners, size * 2).tolist())
      found.append(Found(label, box))
    return found


def _yaml_names(boxes):
  """Returns the names in a data.yaml in the folder or up to two above it."""
  import yaml  # huggingface_hub needs it, too.

  places = [folder / 'data.yaml' for folder in (boxes, *boxes.parents[:2])]
  path = next((place for place in places if place.is_file()), None)
  if path is None:
    raise UserError(
        f'neither --boxes {boxes} nor the two folders above it have a '
        'data.yaml with the names of the classes: give them with --classes FILE'
    )
  try:
    names = yaml.safe_load(path.read_text('utf-8'))['names']
    if isinstance(names, dict):
      names = [names[label] for label in range(len(names))]
    names = tuple(map(str, names))
  except (OSError, ValueError, TypeError, LookupError, yaml.YAMLError) as error:
    raise UserError(f'{path} has no list of names') from error
  return names


def _by_file(root, boxes, lists, suffix, kind, ignored):
  """Returns the collection of images with a file of objects each."""
  splits, unpaired = side_files.paired(
      root, boxes, ignored, suffix=suffix, optional=kind.optional
  )
  if lists and UNDIVIDED not in splits:
    raise UserError(f'{root} has its own train/: leave out --val and --test')
  images = [image for part in splits.values() for image in part]
  if lists:
    splits = _listed(images, lists)

  def read(image, size):
    return kind.read(boxes / image.label_file, size) if image.label_file else []

  content = hashlib.sha256()
  for name in sorted(image.label_file for image in images if image.label_file):
    content.update(name.encode() + (boxes / name).read_bytes())
  return Collection(
      root,
      kind.names,
      splits,
      ignored,
      source={'boxes': str(boxes), 'content of boxes': content.hexdigest()},
      labels=ObjectLabels(read, len(kind.names)),
      unpaired=unpaired,
  )


def _listed(images, lists):
  """Returns the images by split; those in no list are for training."""
  by_name = {}
  for image in images:
    stem = os.path.splitext(image.file_name)[0]
    for name in (image.file_name, stem, os.path.basename(stem)):
      by_name[name] = image
  splits, taken = {'train': []}, {}
  for split, path in lists.items():
    splits[split] = []
    for name in side_files.read_lines(f'--{split}', path):
      image = by_name.get(name) or by_name.get(os.path.splitext(name)[0])
      if image is None:
        raise UserError(f'--{split} {path}: {name} is not among the images')
      if taken.setdefault(image.file_name, split) != split:
        raise UserError(f'{image.file_name} is for val and for test')
      splits[split].append(image)
  splits['train'] = [i for i in images if i.file_name not in taken]
  return splits
