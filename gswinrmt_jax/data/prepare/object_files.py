"""Boxes and masks of objects in files: COCO's JSON, VOC's XML, YOLO's text."""

from collections import Counter, defaultdict
from collections.abc import Sequence
import hashlib
import json
import math
import os
import pathlib
from xml.etree import ElementTree

import numpy as np

from gswinrmt_jax.data import image_paths
from gswinrmt_jax.data.collection import Collection, UNDIVIDED
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import label_images
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
  names = _lines('--classes', classes) if classes else ()
  suffixes = Counter(path.suffix.lower() for path in boxes.rglob('*.*'))
  kinds = {'.xml': _VOC, '.txt': _Yolo}
  kind = max(kinds, key=lambda suffix: suffixes[suffix])
  if not suffixes[kind]:
    raise UserError(f'--boxes {boxes} has neither .xml nor .txt files')
  return _by_file(root, boxes, lists, kind, kinds[kind](boxes, names), ignored)


def _coco(root, paths, ignored):
  """Returns the collection of COCO's JSON files, one for each split."""
  known = [image.file_name for image in image_paths.find(root, '', ignored)]
  by_name = defaultdict(list)
  for name in known:
    by_name[os.path.basename(name)].append(name)
  known, contents = set(known), {}
  categories, entries, objects, splits = None, {}, defaultdict(list), {}
  missing = {}
  for split, path in paths.items():
    contents[split], parts = _read_coco(path)
    images, annotations, own = parts
    if categories not in (None, own):
      raise UserError(f'{path} has other categories than {paths["train"]}')
    categories, of_id, splits[split] = own, {}, []
    for image in images:
      name = image['file_name']
      found = [name] if name in known else by_name[os.path.basename(name)]
      if image['id'] in of_id:
        raise UserError(f'{path}: two images have the id {image["id"]}')
      if len(found) > 1:
        raise UserError(f'{path}: {name} may be {found[0]} or {found[1]}')
      of_id[image['id']] = found[0] if found else None
      if not found:
        missing[name] = f'is in {path}, but not in {root}'
        continue
      if found[0] in entries:
        raise UserError(f'{path}: {name} is there twice, or in another file')
      entries[found[0]] = image.get('width'), image.get('height'), path
      splits[split].append(ImageFile(found[0], 0))
    if not splits[split]:
      raise UserError(
          f'{path}: none of its {counted(len(images), "image")} is in {root}, '
          f'the first is {images[0]["file_name"]}'
      )
    seen = set()
    for annotation in annotations:
      number = annotation.get('id')
      if number is not None and number in seen:
        raise UserError(f'{path}: two annotations have the id {number}')
      seen.add(number)
      if annotation['image_id'] not in of_id:
        raise UserError(
            f'{path}: annotation {number} is of image '
            f'{annotation["image_id"]!r}, which is not in the file'
        )
      if annotation['category_id'] not in own:
        raise UserError(
            f'{path}: annotation {number} has the unknown category '
            f'{annotation["category_id"]!r}'
        )
      objects[of_id[annotation['image_id']]].append(annotation)
  labels = {number: label for label, number in enumerate(categories)}
  # Image, and whether there is a mask, of the objects that are stored.
  masked = [
      (name, bool(each.get('segmentation')))
      for name, found in objects.items()
      for each in found
      if name is not None and not each.get('ignore')
  ]
  without = [name for name, has_mask in masked if not has_mask]
  masks, notes = bool(masked) and not without, []
  if 0 < len(without) < len(masked):
    notes.append(
        f'masks of {len(masked) - len(without):,} of {len(masked):,} objects: '
        f'none stored, image {without[0]} has an object without'
    )

  def read(image, size):
    width, height, path = entries[image.file_name]
    if None not in (width, height) and (width, height) != size:
      raise ValueError(
          f'has {size[0]} x {size[1]} pixels, in {path} {width} x {height}'
      )
    return [
        _of_coco(annotation, labels)
        for annotation in objects[image.file_name]
        if not annotation.get('ignore')
    ]

  unused = len(known - entries.keys())
  ignored['images that are not in the files'] += unused
  if len(splits) == 1:
    splits = {UNDIVIDED: splits['train']}
  return Collection(
      root,
      tuple(categories.values()),
      splits,
      ignored,
      notes=notes,
      source={
          'boxes': {split: str(path) for split, path in paths.items()},
          'content of boxes': contents,
      },
      labels=ObjectLabels(
          read,
          len(labels),
          masks=masks,
          beyond='so many suggest corners x0 y0 x1 y1 instead of x y w h',
      ),
      unpaired=missing,
  )


def _read_coco(path):
  """Returns a checksum of the file, its images, annotations and categories."""
  try:
    content = path.read_bytes()
    parts = json.loads(content)
  except OSError as error:
    raise UserError(f'{path} cannot be read: {error.strerror}') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'{path} is not JSON: {error}') from error
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
  return hashlib.sha256(content).hexdigest(), (images, annotations, categories)


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
    if len(stated) == 2 and all(stated) and stated != size:
      raise ValueError(
          f'has {size[0]} x {size[1]} pixels, in {path} {width} x {height}'
      )
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
  images, theirs = (
      label_images.by_stem(folder, ignored, wanted)
      for folder, wanted in ((root, None), (boxes, suffix))
  )
  if images.keys() != theirs.keys():
    raise UserError(
        f'{root} and {boxes} must both have train/, val/ and test/, or neither'
    )
  if lists and UNDIVIDED not in images:
    raise UserError(f'{root} has its own train/: leave out --val and --test')
  files, unpaired, splits = {}, {}, {}
  for split, by_stem in images.items():
    of_split = theirs[split]
    splits[split] = []
    for stem, name in by_stem.items():
      if stem not in of_split and not kind.optional:
        unpaired[name] = f'has no {suffix} in {boxes}'
        continue
      files[name] = of_split.get(stem)
      splits[split].append(ImageFile(name, 0))
    for stem in of_split.keys() - by_stem.keys():
      if os.path.basename(stem) != 'classes':  # YOLO's tools write such a list.
        where = boxes / of_split[stem]
        unpaired[str(where)] = f'is without an image in {root}'
  if lists:
    splits = _listed(splits[UNDIVIDED], lists)

  def read(image, size):
    file = files[image.file_name]
    return kind.read(boxes / file, size) if file else []

  content = hashlib.sha256()
  for name in sorted(file for file in files.values() if file):
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
    for name in _lines(f'--{split}', path):
      image = by_name.get(name) or by_name.get(os.path.splitext(name)[0])
      if image is None:
        raise UserError(f'--{split} {path}: {name} is not among the images')
      if taken.setdefault(image.file_name, split) != split:
        raise UserError(f'{image.file_name} is for val and for test')
      splits[split].append(image)
  splits['train'] = [i for i in images if i.file_name not in taken]
  return splits


def _lines(option, path):
  """Returns the lines of a file, each different."""
  try:
    lines = [line.strip() for line in path.read_text('utf-8-sig').splitlines()]
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'{option} {path} cannot be read: {error}') from error
  lines = tuple(line for line in lines if line)
  twice = [line for line, count in Counter(lines).items() if count > 1]
  if twice or not lines:
    said = f'has {twice[0]!r} twice' if twice else 'is empty'
    raise UserError(f'{option} {path} {said}')
  return lines
