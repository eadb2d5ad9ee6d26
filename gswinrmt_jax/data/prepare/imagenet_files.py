"""Finds the pictures of ImageNet-1k as it is released, or as class folders."""

from collections import Counter
from collections.abc import Mapping
import functools
from importlib import resources
import itertools
import pathlib
import posixpath
import re

from gswinrmt_jax.data import imagenet
from gswinrmt_jax.data.prepare import class_folders, tars
from gswinrmt_jax.data.prepare.collection import Collection, Picture
from gswinrmt_jax.errors import UserError

WNID = re.compile(r'n\d{8}')
TRAIN_TAR = 'ILSVRC2012_img_train.tar'
VAL_TAR = 'ILSVRC2012_img_val.tar'
OFFICIAL = {'train': 1_281_167, 'val': 50_000}
_TRAIN = (TRAIN_TAR, 'train', 'ILSVRC2012_img_train')
_VAL = (VAL_TAR, 'val', 'validation', 'ILSVRC2012_img_val')
_VAL_NAME = re.compile(r'ILSVRC2012_val_(\d{8})')


def find(root: pathlib.Path) -> Collection:
  """Returns the pictures of ImageNet-1k; labels are in the order of wnids.

  Train is ILSVRC2012_img_train.tar, read where it is, or train/ with a folder
  n01440764 or a tar n01440764.tar for each class. Val is val/ with such
  folders, or ILSVRC2012_img_val.tar or val/ with the images side by side, whose
  classes come with TFDS.

  Raises:
    UserError: If any of it is missing or has other classes.
  """
  labels = {wnid: label for label, wnid in enumerate(imagenet.wnids())}
  ignored = Counter()
  train = _first(root, _TRAIN, 'train/ with a folder for each class')
  with_classes = (name for name in _VAL if has_classes(root, name))
  val = next(with_classes, None) or _first(root, _VAL, 'val/')
  source = {'division': 'as released', 'train': train, 'val': val}
  splits = {'train': _all_classes(root, train, labels, ignored)}
  there = {picture.label for picture in splits['train']}
  missing = [wnid for wnid, label in labels.items() if label not in there]
  if missing:
    raise UserError(
        f'{root / train}: {len(missing)} of {len(labels)} classes of '
        f'ImageNet-1k have no pictures, the first {missing[0]}'
    )
  if has_classes(root, val):
    splits['val'] = _all_classes(root, val, labels, ignored)
  else:
    splits['val'] = [
        picture._replace(label=labels[_val_wnid(picture.file_name)])
        for picture in _pictures(root, val, ignored)
    ]
  notes = [
      f'{split} has {len(splits[split]):,} pictures, the release has {count:,}'
      for split, count in OFFICIAL.items()
      if len(splits[split]) != count
  ]
  return Collection(root, imagenet.classes(), splits, ignored, source, notes)


def find_classes(
    root: pathlib.Path,
    below: str,
    labels: Mapping[str, int],
    ignored: Counter,
    name: str,
) -> tuple[list[Picture], list[str]]:
  """Returns the pictures of the classes in `labels`.

  A class is a folder n01440764, or a tar n01440764.tar as ImageNet is released;
  the classes lie in one folder `root / below`, or in one tar of tars. `ignored`
  counts what is passed over; the progress bar shows `name`.

  Returns:
    The pictures in the order of the classes, and the identifiers of classes
    that are there but not wanted.

  Raises:
    UserError: If a class is there twice, as a folder and as a tar; or as the
      readers of both do.
  """
  found, unwanted, seen = [], [], set()
  for wnid, pictures in _classes(root, below, ignored, labels, name):
    if wnid in seen and WNID.fullmatch(wnid):
      raise UserError(
          f'{root / below} has the class {wnid} twice, as a folder and as a '
          'tar or in two tars: remove one'
      )
    seen.add(wnid)
    if wnid in labels:
      found += (p._replace(label=labels[wnid]) for p in pictures)
    elif WNID.fullmatch(wnid):
      unwanted.append(wnid)
    else:
      ignored['folders without a WordNet identifier'] += 1
  found.sort()
  return found, unwanted


def has_classes(root: pathlib.Path, below: str) -> bool:
  """Returns whether `find_classes` would find a class in this folder."""
  if not (root / below).is_dir():
    return False
  return any(
      WNID.fullmatch(path.name.removesuffix('.tar'))
      for path in (root / below).iterdir()
  )


def _classes(root, below, ignored, labels, name):
  """Yields identifier and pictures; unwanted folders are not opened."""
  import tqdm

  if (root / below).is_file():
    by_tar = itertools.groupby(
        tars.pictures(root, below, ignored),
        lambda picture: picture.file_name.split('.tar/')[-2],
    )
    for path, pictures in tqdm.tqdm(
        by_tar, f'{name} list', len(labels), unit='class', disable=None
    ):
      yield posixpath.basename(path), pictures
    return
  for entry in class_folders.visible(root / below, ignored):
    is_tar = entry.name.endswith('.tar') and entry.is_file()
    if is_tar or class_folders.is_folder(entry):
      wnid = entry.name.removesuffix('.tar') if is_tar else entry.name
      path = f'{below}/{entry.name}'.lstrip('/')
      yield wnid, _pictures(root, path, ignored) if wnid in labels else ()
    else:
      ignored[class_folders.outside(entry.name)] += 1


def _pictures(root, below, ignored):
  """Returns the pictures of a folder or a tar, labels 0."""
  if (root / below).is_file():
    return tars.pictures(root, below, ignored)
  names = class_folders.walk(root, below, ignored)
  return (Picture(name, 0) for name in names)


def _all_classes(root, below, labels, ignored):
  pictures, unknown = find_classes(root, below, labels, ignored, 'imagenet')
  if unknown:
    raise UserError(
        f'{root / below} has {len(unknown)} classes that ImageNet-1k has not, '
        f'the first {unknown[0]}; `gswinrmt prepare folder` takes any classes'
    )
  return pictures


def _first(root, names, folder):
  for name in names:
    if (root / name).exists():
      return name
  raise UserError(f'{root} has neither {names[0]} nor {folder}')


def _val_wnid(file_name):
  """Returns the class of a validation image, which is known by its number."""
  wnids = _val_wnids()
  match = _VAL_NAME.search(file_name)
  number = int(match[1]) if match else 0
  if not 1 <= number <= len(wnids):
    raise UserError(
        f'{file_name} is no validation image of ImageNet-1k: these are '
        f'ILSVRC2012_val_00000001 to ILSVRC2012_val_{len(wnids):08d}'
    )
  return wnids[number - 1]


@functools.cache
def _val_wnids() -> list[str]:
  """Returns the classes of the validation images by number, from TFDS."""
  folder = resources.files('tensorflow_datasets') / 'datasets/imagenet2012'
  return (folder / 'validation_labels.txt').read_text().split()
