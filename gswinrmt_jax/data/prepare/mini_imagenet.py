"""Finds the pictures of mini-ImageNet and divides them for classification.

The data set was made for few-shot learning: 100 classes of 600 images, 64, 16
and 20 of them for train, validation and test. Here the 100 classes are pooled
and each is divided, 500 / 50 / 50.
"""

from collections import Counter, defaultdict
import csv
import pathlib
import posixpath

from gswinrmt_jax.data import imagenet
from gswinrmt_jax.data.prepare import class_folders, imagenet_files
from gswinrmt_jax.data.prepare import collection as collections
from gswinrmt_jax.data.prepare.collection import Collection, Picture, UNDIVIDED
from gswinrmt_jax.errors import UserError

NUM_CLASSES = 100
IMAGES_PER_CLASS = 600
SHARES = {'val': 50 / 600, 'test': 50 / 600}
_CSV = ('train.csv', 'val.csv', 'test.csv')


def find(
    root: pathlib.Path,
    *,
    classes: pathlib.Path | None = None,
    seed: int | None = None,
) -> Collection:
  """Returns the pictures of mini-ImageNet, divided.

  `root` has train.csv, val.csv and test.csv of the few-shot release, with its
  images anywhere below; or, if `classes` is given, the classes of ImageNet's
  train set as `imagenet_files.find_classes` reads them, in `root` or in its
  train/; or class folders. If these are in train/, val/ and test/ that share
  their classes, that division stays; if not, the pictures are pooled.

  Lines of the file `classes` start with the 100 WordNet identifiers. `seed` is
  that of the division, 0 if it is None.

  Raises:
    UserError: If there are not 100 classes, or files are missing.
  """
  if classes is not None:
    collection = _of_imagenet(root, _read_classes(classes))
  elif any((root / name).exists() for name in _CSV):
    collection = _of_lists(root)
  else:
    collection = _of_folders(root)
  found = len(collection.class_names)
  if found != NUM_CLASSES:
    raise UserError(
        f'{root} has {found} classes, mini-ImageNet has {NUM_CLASSES}; '
        '`gswinrmt prepare folder` takes any number'
    )
  names = dict(zip(imagenet.wnids(), imagenet.classes(), strict=True))
  if set(collection.class_names) <= names.keys():
    collection.class_names = tuple(map(names.get, collection.class_names))
  if UNDIVIDED not in collection.splits:
    return collections.keep_division(collection, seed=seed)
  other = {*collection.counts(UNDIVIDED)} - {IMAGES_PER_CLASS}
  if other:
    collection.notes.append(
        f'some classes have {min(other):,} to {max(other):,} pictures, not '
        f'{IMAGES_PER_CLASS}: divided in the same proportion, 10 : 1 : 1'
    )
  return collections.divide(collection, SHARES, seed or 0, options=False)


def _of_imagenet(root, wnids):
  for place in (imagenet_files.TRAIN_TAR, 'train', ''):
    if imagenet_files.has_classes(root, place) or (root / place).is_file():
      break
  else:
    raise UserError(
        f'{root} has no folders n01440764 or tars n01440764.tar, nor has '
        f'{root / "train"}'
    )
  ignored = Counter()
  labels = {wnid: label for label, wnid in enumerate(sorted(wnids))}
  pictures, _ = imagenet_files.find_classes(
      root, place, labels, ignored, 'mini_imagenet'
  )
  there = {picture.label for picture in pictures}
  for wnid, label in labels.items():
    if label not in there:
      raise UserError(f'{root / place} has no pictures of class {wnid}')
  return Collection(root, tuple(labels), {UNDIVIDED: pictures}, ignored)


def _read_classes(path):
  try:
    lines = path.read_text('utf-8').splitlines()
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(f'cannot read --classes {path}: {error}') from error
  wnids = [line.split()[0] for line in lines if line.strip()]
  for wnid in wnids:
    if not imagenet_files.WNID.fullmatch(wnid):
      raise UserError(
          f'{path}: a line starts with {wnid!r}, not with a WordNet identifier '
          'such as n01440764'
      )
  return set(wnids)


def _of_lists(root):
  """Reads the few-shot release: `filename,label` in three files."""
  rows = []
  for name in _CSV:
    path = root / name
    if not path.exists():
      raise UserError(f'{root} has no {name}, which belongs to {_CSV}')
    rows += _read_list(path)
  ignored, places = Counter(), defaultdict(list)
  for file_name in class_folders.walk(root, '', ignored):
    places[posixpath.basename(file_name)].append(file_name)
  names = sorted({label for _, label in rows})
  pictures, missing = [], []
  for name, label in rows:
    found = places[posixpath.basename(name)]
    if len(found) > 1:  # The same name in the folders of several classes.
      found = [path for path in found if f'/{label}/' in f'/{path}']
    if len(found) == 1:
      pictures.append(Picture(found[0], names.index(label)))
    else:
      missing.append(name)
  if missing:
    raise UserError(
        f'{len(missing):,} of the {len(rows):,} images that the lists name are '
        f'not below {root}, or not once; the first: {missing[0]}'
    )
  return Collection(root, tuple(names), {UNDIVIDED: pictures}, ignored)


def _read_list(path):
  """Returns file name and label of each row."""
  rows = []
  try:
    with path.open(newline='', encoding='utf-8') as file:
      reader = csv.DictReader(file)
      if not {'filename', 'label'} <= set(reader.fieldnames or ()):
        raise UserError(f'{path} does not start with filename,label')
      for row in reader:
        if not (row['filename'] and row['label']):
          raise UserError(
              f'{path}, line {reader.line_num}: not a file name and a label'
          )
        rows.append((row['filename'], row['label']))
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise UserError(f'cannot read {path}: {error}') from error
  return rows


def _of_folders(root):
  ignored = Counter()
  found = class_folders.list_files(root, ignored)
  names = sorted(set().union(*found.values()))
  if names == sorted(next(iter(found.values()))):
    return class_folders.find(root)
  pictures = [
      Picture(file_name, names.index(name))
      for classes in found.values()
      for name, file_names in classes.items()
      for file_name in file_names
  ]
  return Collection(root, tuple(names), {UNDIVIDED: pictures}, ignored)
