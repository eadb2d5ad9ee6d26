"""Finds the images of ImageNet-1k, and of mini-ImageNet in its various layouts.

Mini-ImageNet was designed for few-shot learning: 100 classes of 600 images,
with 64, 16 and 20 classes for train, validation and test. Here the classes are
pooled, and the images of each are divided, 500 / 50 / 50.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
import csv
import functools
from importlib import resources
import itertools
import os
import pathlib
import posixpath
import re

from gswinrmt_jax.data import class_folders, image_paths, imagenet, parallel
from gswinrmt_jax.data.collection import Collection, divide, UNDIVIDED
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.data.prepare import side_files
from gswinrmt_jax.errors import UserError

OFFICIAL = {'train': 1_281_167, 'val': 50_000}
_TRAIN_TAR, _VAL_TAR = 'ILSVRC2012_img_train.tar', 'ILSVRC2012_img_val.tar'
_TRAIN = (_TRAIN_TAR, 'train', 'ILSVRC2012_img_train')
_VAL = (_VAL_TAR, 'val', 'validation', 'ILSVRC2012_img_val')
_WNID = re.compile(r'n\d{8}')
_VAL_NAME = re.compile(r'ILSVRC2012_val_(\d{8})')

MINI_CLASSES = 100
MINI_IMAGES = 600  # per class
MINI_SHARES = {'val': 50 / 600, 'test': 50 / 600}
_CSV = ('train.csv', 'val.csv', 'test.csv')


def find(root: pathlib.Path) -> Collection:
  """Returns the images of ImageNet-1k; labels are in the order of wnids.

  Train is ILSVRC2012_img_train.tar, read in place, or train/ with a folder
  n01440764 or a tar n01440764.tar for each class. Val is val/ with such
  folders; or ILSVRC2012_img_val.tar or a flat val/, for which TFDS provides the
  classes.

  Raises:
    UserError: If train, one of its classes or val is missing.
  """
  labels = {wnid: label for label, wnid in enumerate(imagenet.wnids())}
  ignored = Counter()
  train = _first(root, _TRAIN, 'train/ with a folder for each class')
  val = _first(root, _VAL, 'val/')
  source = {'division': 'as released', 'train': train, 'val': val}
  splits = {'train': find_classes(root, train, labels, ignored)}
  if _has_classes(root, val):
    splits['val'] = find_classes(root, val, labels, ignored, every=False)
  else:
    splits['val'] = [
        image._replace(label=labels[_val_wnid(image.file_name)])
        for image in image_paths.find(root, val, ignored)
    ]
  notes = [
      f'{split} has {len(splits[split]):,} images, the release has {count:,}'
      for split, count in OFFICIAL.items()
      if len(splits[split]) != count
  ]
  return Collection(root, imagenet.classes(), splits, ignored, source, notes)


def find_mini(
    root: pathlib.Path,
    *,
    classes: pathlib.Path | None = None,
    seed: int | None = None,
) -> Collection:
  """Returns the images of mini-ImageNet, divided into splits.

  Class folders in train/, val/ and test/ keep that division if these share
  their classes; all other images are pooled and divided.

  Args:
    root: Folder with train.csv, val.csv and test.csv of the few-shot release
      and its images at any depth; or with class folders; or, if `classes` is
      given, with the train set of ImageNet, as for `find` or without train/.
    classes: File whose lines start with the 100 WordNet identifiers.
    seed: Seed of the division; None means 0.

  Raises:
    UserError: If there are not 100 classes, or files are missing.
  """
  if classes:
    collection = _of_imagenet(root, classes)
  elif any((root / name).exists() for name in _CSV):
    collection = _of_lists(root)
  else:
    collection = class_folders.find(root, pool=True)
    if collection.splits.keys() == {'train'}:
      collection.splits[UNDIVIDED] = collection.splits.pop('train')
  found = len(collection.class_names)
  if found != MINI_CLASSES:
    raise UserError(
        f'{root} has {found} classes, mini-ImageNet has {MINI_CLASSES}; '
        'a folder with any number of class folders can be trained on in place, '
        'with --config.data.name=DIR'
    )
  names = dict(zip(imagenet.wnids(), imagenet.classes(), strict=True))
  if set(collection.class_names) <= names.keys():
    collection.class_names = tuple(map(names.get, collection.class_names))
  shares = {}
  if UNDIVIDED in collection.splits:
    shares = MINI_SHARES
    other = {*collection.counts(UNDIVIDED)} - {MINI_IMAGES}
    if other:
      collection.notes.append(
          f'some classes have {min(other):,} to {max(other):,} images, not '
          f'{MINI_IMAGES}: divided in the same proportion, 10 : 1 : 1'
      )
  return divide(collection, shares, seed)


def find_classes(
    root: pathlib.Path,
    below: str,
    labels: Mapping[str, int],
    ignored: Counter,
    *,
    every: bool = True,
) -> list[ImageFile]:
  """Returns the images of the classes in `labels`, sorted by file name.

  A class is a folder n01440764, or a tar n01440764.tar as in the release. All
  classes lie in one folder `root / below`, or in one tar of tars. `ignored`
  counts skipped files and other classes.

  Raises:
    UserError: If a class occurs twice or, with `every`, has no images.
  """
  found, seen = [], set()
  for wnid, images in _classes(root, below, ignored, labels):
    if wnid not in labels:
      ignored['other folders'] += 1
      continue
    if wnid in seen:
      raise UserError(
          f'{root / below} has the class {wnid} twice, as a folder and as a '
          'tar or in two tars: remove one'
      )
    seen.add(wnid)
    found += (image._replace(label=labels[wnid]) for image in images)
  there = {image.label for image in found}
  missing = [wnid for wnid, label in labels.items() if label not in there]
  if every and missing:
    raise UserError(
        f'{root / below}: {len(missing)} of {len(labels)} classes have no '
        f'images, the first {missing[0]}'
    )
  return sorted(found)


def _classes(root, below, ignored, labels):
  """Yields identifier and images of classes; opens no other folders."""
  if (root / below).is_file():
    by_tar = itertools.groupby(
        image_paths.find(root, below, ignored),
        lambda image: image.file_name.split('.tar/')[-2],
    )
    for path, images in parallel.with_bar(by_tar, 'list', len(labels), 'class'):
      yield posixpath.basename(path), images
    return
  for name in image_paths.visible(root / below, ignored):
    wnid, path = name.removesuffix('.tar'), f'{below}/{name}'.lstrip('/')
    if wnid != name or os.path.isdir(root / path):
      yield wnid, image_paths.find(
          root, path, ignored
      ) if wnid in labels else ()
    else:
      ignored[image_paths.suffix_of(name)] += 1


def _has_classes(root, below):
  found = (path.name for path in (root / below).glob('n*'))
  return any(_WNID.fullmatch(name.removesuffix('.tar')) for name in found)


def _first(root, names, folder):
  for name in names:
    if (root / name).exists():
      return name
  raise UserError(f'{root} has neither {names[0]} nor {folder}')


def _val_wnid(file_name):
  """Returns the class of a validation image from the number in its name."""
  wnids = _val_wnids()
  match = _VAL_NAME.search(file_name)
  number = int(match[1]) if match else 0
  if not 1 <= number <= len(wnids):
    raise UserError(
        f'{file_name} is not a validation image of ImageNet-1k: these are '
        f'ILSVRC2012_val_00000001 to ILSVRC2012_val_{len(wnids):08d}'
    )
  return wnids[number - 1]


@functools.cache
def _val_wnids() -> list[str]:
  """Returns the classes of the validation images by number, from TFDS."""
  folder = resources.files('tensorflow_datasets') / 'datasets/imagenet2012'
  return (folder / 'validation_labels.txt').read_text().split()


def _of_imagenet(root, path):
  """Finds the classes that the file lists in ImageNet's train set."""
  lines = side_files.read_lines('--classes', path)
  wnids = sorted({line.split()[0] for line in lines})
  labels = {wnid: label for label, wnid in enumerate(wnids)}
  ignored = Counter()
  below = next((name for name in _TRAIN if (root / name).exists()), '')
  images = find_classes(root, below, labels, ignored)
  return Collection(root, tuple(wnids), {UNDIVIDED: images}, ignored)


def _of_lists(root):
  """Finds the images of the few-shot release, which three CSV files list."""
  rows = [row for name in _CSV for row in _read_list(root / name)]
  ignored, places = Counter(), defaultdict(list)
  for image in image_paths.find(root, '', ignored):
    places[posixpath.basename(image.file_name)].append(image)
  names = sorted({label for _, label in rows})
  images, missing = [], []
  for name, label in rows:
    found = places[posixpath.basename(name)]
    if len(found) == 1:
      images.append(found[0]._replace(label=names.index(label)))
    else:
      missing.append(name)
  if missing:
    raise UserError(
        f'{len(missing):,} of the {len(rows):,} images that the lists name do '
        f'not occur exactly once below {root}; the first: {missing[0]}'
    )
  return Collection(root, tuple(names), {UNDIVIDED: images}, ignored)


def _read_list(path):
  """Returns file name and label of each row."""
  try:
    with path.open(newline='', encoding='utf-8-sig') as file:
      rows = [(row['filename'], row['label']) for row in csv.DictReader(file)]
  except KeyError as error:
    raise UserError(f'{path} has no column {error}') from error
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise UserError(f'cannot read {path}: {error}') from error
  for number, row in enumerate(rows, 2):
    if not all(row):
      raise UserError(f'{path}, line {number}: not a file name and a label')
  return rows
