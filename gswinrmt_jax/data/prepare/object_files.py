"""Objects in files: VOC's XML and YOLO's text; COCO's JSON is in `coco`."""

from collections import Counter
from collections.abc import Sequence
import contextlib
import hashlib
import os
import pathlib
from xml.etree import ElementTree

import numpy as np

from gswinrmt_jax.data import image_paths
from gswinrmt_jax.data.collection import Collection, UNDIVIDED
from gswinrmt_jax.data.prepare import coco, side_files
from gswinrmt_jax.data.prepare.object_labels import (
    Found,
    ObjectLabels,
    Size,
)
from gswinrmt_jax.errors import UserError

# What is suggested of boxes beyond their images.
_YOLO_HINTS = {
    'outside': "YOLO's values are shares of the image, 0 to 1, not pixels",
    'cut': (
        "so many suggest pixels, but YOLO's values are shares of the image, "
        '0 to 1'
    ),
}


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
      have train/ and any of val/ and test/, if `root` has them, too. If it is
      `root`, or the folder around it where `root` is its images/, images and
      files are in images/ and labels/ of it or its splits. Or YOLO's YAML file,
      for the folder that holds it.
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
  if boxes.is_file() and classes:
    raise UserError(f'--boxes {boxes} has the classes: leave out --classes')
  names = ()
  if boxes.suffix in ('.yaml', '.yml') and boxes.is_file():
    names, boxes = _yaml_names(boxes), boxes.parent
  if boxes.is_file():
    return coco.find(root, {'train': boxes, **lists}, ignored)
  if not boxes.is_dir():
    raise UserError(f'--boxes {boxes}: no such file or folder')
  inside = boxes / 'images', boxes / 'labels'  # as tools for YOLO write them
  same = root.resolve() in (boxes.resolve(), inside[0].resolve())
  if same and all(map(os.path.isdir, inside)):
    root, boxes = inside
  if classes:
    names = side_files.read_lines('--classes', classes)
  suffixes = Counter(
      map(image_paths.suffix_of, image_paths.files(boxes, '', ''))
  )
  kinds = {'.xml': _VOC, '.txt': _Yolo}
  kind = max(kinds, key=lambda suffix: suffixes[suffix])
  if not suffixes[kind]:
    raise UserError(f'--boxes {boxes} has neither .xml nor .txt files')
  return _by_file(root, boxes, lists, kind, kinds[kind](boxes, names), ignored)


class _VOC:
  """Objects in XML files of PASCAL VOC, whose pixels count from 1."""

  hints = None
  optional = False

  def __init__(self, boxes: pathlib.Path, names: Sequence[str]):
    if not names:
      found = set()
      for path in map(boxes.joinpath, image_paths.files(boxes, '', '.xml')):
        with contextlib.suppress(ValueError):  # `read` names its image.
          found |= {name for name, *_ in _voc_objects(_voc_root(path), path)}
      names = sorted(found)
    self.names = tuple(names)

  def read(self, path: pathlib.Path, size: Size) -> list[Found]:
    """Returns the objects in an image's file; difficult ones are crowds."""
    root = _voc_root(path)
    width, height = (
        root.findtext(f'size/{side}', '').strip()
        for side in ('width', 'height')
    )
    if {width, height}.isdisjoint(('', '0')):  # Some tools write 0.
      side_files.check_size(size, (width, height), path)
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
  # LookupError: it names an encoding that does not exist.
  except (ElementTree.ParseError, ValueError, LookupError) as error:
    raise ValueError(
        f'has {path}, which is not XML in UTF-8: {error}'
    ) from None
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
    except ValueError:
      raise ValueError(
          f'has a bndbox that is not four numbers, in {path}'
      ) from None
    name = entry.findtext('name', '').strip()
    if not name:
      raise ValueError(f'has an object without a name, in {path}')
    yield name, entry.findtext('difficult', '0').strip() == '1', corners


class _Yolo:
  """Objects in text files of YOLO: a class, then shares of the image.

  They are centre and size of a box, or the corners of a polygon.
  """

  hints = _YOLO_HINTS
  optional = True  # An image without a file has no objects.

  def __init__(self, boxes: pathlib.Path, names: Sequence[str]):
    places = [folder / 'data.yaml' for folder in (boxes, *boxes.parents[:2])]
    path = next((place for place in places if place.is_file()), None)
    if path and names:
      with contextlib.suppress(OSError, ValueError):  # It need not be one.
        _yaml_content(path)
    if not names:
      if path is None:
        raise UserError(
            f'neither --boxes {boxes} nor the two folders above it have a '
            'data.yaml with the names of the classes: give them with --classes '
            'FILE'
        )
      names = _yaml_names(path)
    self.names = tuple(names)

  def read(self, path: pathlib.Path, size: Size) -> list[Found]:
    """Returns the objects in an image's file."""
    found = []
    try:
      lines = path.read_text('utf-8-sig').splitlines()
    except UnicodeDecodeError as error:
      raise ValueError(f'has {path}, which is not text') from error
    for number, line in enumerate(lines, 1):
      if not line.strip():
        continue
      try:
        label, *shares = map(float, line.split())
        if label != int(label) or len(shares) < 4 or len(shares) % 2:
          raise ValueError
      except (ValueError, OverflowError):
        raise ValueError(
            f'has {path}, whose line {number} is not a class and four shares, '
            'or a class and the corners of a polygon'
        ) from None
      if not 0 <= label < len(self.names):
        raise ValueError(f'has an object of class {label:g}, in {path}')
      pixels, mask = np.multiply(shares, size * (len(shares) // 2)), None
      if len(pixels) > 4:
        x, y = pixels[::2], pixels[1::2]
        corners = x.min(), y.min(), x.max(), y.max()
        mask = [pixels.tolist()]
      else:
        x, y, width, height = pixels
        if width < 0 or height < 0:
          raise ValueError(
              f'has {path}, whose line {number} has a negative width or height'
          )
        corners = x - width / 2, y - height / 2, x + width / 2, y + height / 2
      box = tuple(map(float, corners))
      which = f'line {number} of the file'
      found.append(Found(int(label), box, mask=mask, which=which))
    return found


def _yaml_content(path):
  """Returns a YAML file of YOLO; ValueError if it is none.

  Refuses one of key points, which would pass for polygons.
  """
  import yaml  # huggingface_hub needs it, too.

  try:
    # Every value as it is written: YAML would turn a class `no` into False.
    content = yaml.load(path.read_text('utf-8'), yaml.BaseLoader)
  except yaml.YAMLError as error:
    raise ValueError from error
  if isinstance(content, dict) and 'kpt_shape' in content:
    raise UserError(f'{path} has a kpt_shape: key points are not read')
  return content


def _yaml_names(path):
  """Returns the names of the classes in a YAML file of YOLO."""
  try:
    content = _yaml_content(path)
    names = content['names']
    if isinstance(names, dict):
      names = [names[str(label)] for label in range(len(names))]
    elif not isinstance(names, list):
      raise TypeError
    if not all(isinstance(name, str) for name in names):
      raise TypeError  # Lists in lists, which aliases can make huge.
    names = tuple(names)
  except (OSError, ValueError, TypeError, LookupError) as error:
    raise UserError(
        f'{path} has no list of names, or of their numbers from 0'
    ) from error
  return names


def _by_file(root, boxes, lists, suffix, kind, ignored):
  """Returns the collection of images with a file of objects each."""
  splits, unpaired = side_files.paired(
      root, boxes, ignored, suffix=suffix, optional=kind.optional
  )
  if lists and UNDIVIDED not in splits:
    raise UserError(f'{root} has its own splits: leave out --val and --test')
  images = [image for part in splits.values() for image in part]
  if lists:
    splits = _listed(root, images, lists)

  def read(image, size):
    if not image.label_file:
      return []
    return kind.read(boxes / image.label_file, size)

  content = hashlib.sha256()
  for name in sorted(image.label_file for image in images if image.label_file):
    content.update(name.encode() + (boxes / name).read_bytes())
  return Collection(
      root,
      kind.names,
      splits,
      ignored,
      source={'boxes': str(boxes), 'content of boxes': content.hexdigest()},
      labels=ObjectLabels(read, len(kind.names), kind.hints),
      unpaired=unpaired,
  )


def _listed(root, images, lists):
  """Returns the images by split; those in no list are for training."""
  by_name = {image.file_name: image for image in images}
  splits, taken = {'train': []}, {}
  for split, path in lists.items():
    lines = side_files.read_lines(f'--{split}', path)
    found = side_files.located(lines, root, by_name, path)
    splits[split] = []
    for line in lines:
      if line not in found:
        raise UserError(
            f'--{split} {path}: {line} is not among the images, or has no file '
            'of objects'
        )
      name = found[line]
      if name in taken:
        raise UserError(
            f'--{split} {path}: {line} is for {taken[name]} already'
        )
      taken[name] = split
      splits[split].append(by_name[name])
  splits['train'] = [i for i in images if i.file_name not in taken]
  return splits
