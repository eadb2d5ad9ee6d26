"""Finds images in class folders, with or without split folders."""

from collections import Counter
from collections.abc import Iterable
import os
import pathlib
import re

from gswinrmt_jax.data.prepare import walk
from gswinrmt_jax.data.prepare.collection import Collection, UNDIVIDED
from gswinrmt_jax.errors import UserError

_SPLITS = {
    'train': 'train',
    'training': 'train',
    'val': 'val',
    'validation': 'val',
    'valid': 'val',
    'test': 'test',
    'testing': 'test',
}
_TAKEN = ('cifar10', 'digits', 'imagenet', 'mini_imagenet', 'downloads')


def check_name(name: str | None, dataset: str = 'folder') -> None:
  """Checks the name of a custom data set.

  Args:
    name: The name.
    dataset: Kind of data set, as given to `gswinrmt prepare`.

  Raises:
    UserError: If the name is missing or taken, or TFDS would change it.
  """
  if not name:
    raise UserError(
        f'a NAME is needed: gswinrmt prepare {dataset} NAME --images DIR'
    )
  if not re.fullmatch('[a-z][a-z0-9_]*', name):
    raise UserError(
        f'{name!r} cannot be the name of a data set: must be lower-case '
        'letters a to z, digits and underscores, a letter first'
    )
  if name in _TAKEN:
    raise UserError(f'the name {name} is taken: choose another')


def find(root: pathlib.Path, *, pool: bool = False) -> Collection:
  """Returns the images below `root`, labelled by their class folders.

  `root` has train/ and any of val/ and test/ with a folder for each class, or
  the class folders themselves, whose images are `UNDIVIDED`. Labels follow the
  names of the class folders, sorted by code point. A class folder may have
  images at any depth. Symbolic links are followed, and hidden files skipped.

  Args:
    root: The folder.
    pool: If val or test has classes that train lacks, whether to pool all
      splits as `UNDIVIDED` instead of raising an error.

  Raises:
    UserError: If `root` has another layout, there are fewer than two classes, a
      split has a class that train lacks, or links form a cycle.
  """
  ignored = Counter()
  parts = _parts(root, ignored)
  splits = {
      split: {
          name: f'{part}/{name}'.lstrip('/')
          for name in folders(root / part, ignored)
      }
      for split, part in parts.items()
  }
  own = next(iter(splits.values()))  # of train, or undivided
  names = sorted(set().union(*splits.values()))
  labels = {name: label for label, name in enumerate(names)}
  if len(names) < 2:
    raise UserError(
        f'{root} has {len(names)} class folder{"s" * (not names)}: two or more '
        'are needed, each with the images of one class'
    )
  images = {
      split: [
          image._replace(label=labels[name])
          for name, below in classes.items()
          for image in walk.images(root, below, ignored)
      ]
      for split, classes in splits.items()
  }
  collection = Collection(root, tuple(names), images, ignored)
  if len(own) < len(names):
    if not pool:
      extra = next(name for name in names if name not in own)
      raise UserError(
          f'{root}: train has no class {extra!r}, but another split has'
      )
    collection.splits = {UNDIVIDED: collection.images}
  return collection


def split_folders(root: pathlib.Path, names: Iterable[str]) -> dict[str, str]:
  """Returns {split: folder} for the folders named after a split, in order.

  Raises:
    UserError: If two folders name the same split.
  """
  found = {}
  for name in names:
    split = _SPLITS.get(name)
    if split in found:
      raise UserError(
          f'{root} has both {found[split]}/ and {name}/, which mean {split}: '
          'remove or rename one'
      )
    if split:
      found[split] = name
  order = ('train', 'val', 'test')
  return {split: found[split] for split in order if split in found}


def _parts(root: pathlib.Path, ignored: Counter) -> dict[str, str]:
  """Returns {split: folder name}, or {UNDIVIDED: ''} without splits."""
  names = folders(root, Counter())
  found = split_folders(
      root, [name for name in names if folders(root / name, Counter())]
  )
  if 'train' not in found:
    if names and set(names) <= set(_SPLITS):
      raise UserError(
          f'{root} has {", ".join(f"{name}/" for name in names)} but no '
          'train/ with a folder of images for each class'
      )
    return {UNDIVIDED: ''}
  ignored['other folders'] = len(names) - len(found)
  folders(root, ignored)
  return found


def folders(folder: pathlib.Path, ignored: Counter) -> list[str]:
  """Returns the names of the subfolders; counts everything else as ignored."""
  names = walk.visible(folder, ignored)
  found = [n for n in names if os.path.isdir(os.path.join(folder, n))]
  ignored.update(walk.suffix_of(n) for n in set(names) - set(found))
  return found
