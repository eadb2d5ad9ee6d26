"""Finds images in class folders, with or without split folders."""

from collections import Counter
import os
import pathlib
import re

from gswinrmt_jax.data import datasets, sources
from gswinrmt_jax.data.prepare import walk
from gswinrmt_jax.data.prepare.collection import Collection, UNDIVIDED
from gswinrmt_jax.errors import UserError

_SPLITS = {
    'train': ('train', 'training'),
    'val': ('val', 'validation', 'valid'),
    'test': ('test', 'testing'),
}
# TFDS has a folder 'downloads' next to its data sets.
_TAKEN = (*datasets.NAMES, *sources.PREPARED_BY_NAME, 'downloads')


def check_name(name: str | None, dataset: str = 'folder') -> None:
  """Checks the name of a custom data set of the kind `dataset`.

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
  images at any depth. Hidden files are skipped.

  Args:
    root: The folder.
    pool: If val or test has classes that train lacks, whether to pool all
      splits as `UNDIVIDED` instead of raising an error.

  Raises:
    UserError: If `root` has another layout, there are fewer than two classes,
      or a split has a class that train lacks; and as in `walk.images`.
  """
  ignored = Counter()
  parts = split_folders(root, ignored)
  classes = {
      split: folders(root / part, ignored) for split, part in parts.items()
  }
  own = next(iter(classes.values()))  # of train, or undivided
  names = sorted(set().union(*classes.values()))
  labels = {name: label for label, name in enumerate(names)}
  if len(names) < 2:
    raise UserError(
        f'{root} has {len(names)} class folder{"s" * (not names)}: two or more '
        'are needed, each with the images of one class'
    )
  images = {
      split: [
          image._replace(label=labels[name])
          for name in classes[split]
          for image in walk.images(root, f'{part}/{name}'.lstrip('/'), ignored)
      ]
      for split, part in parts.items()
  }
  collection = Collection(root, tuple(names), images, ignored)
  extra = [name for name in names if name not in own]
  if extra and not pool:
    raise UserError(
        f'{root}: train has no class {extra[0]!r}, but another split has'
    )
  if extra:
    collection.splits = {UNDIVIDED: collection.images}
  return collection


def split_folders(
    root: pathlib.Path, ignored: Counter, *, of_classes: bool = True
) -> dict[str, str]:
  """Returns {split: folder name}, or {UNDIVIDED: ''} without train/.

  With `of_classes`, a folder with the name of a split counts only if it has
  subfolders: otherwise it may be a class that is called train. `ignored` counts
  what lies beside train/.

  Raises:
    UserError: If two folders name the same split, or there is val/ or test/ but
      no train/.
  """
  names = folders(root, Counter())
  named = [name for name in names if name in set().union(*_SPLITS.values())]
  usable = named
  if of_classes:
    usable = [name for name in named if folders(root / name, Counter())]
  found = {}
  for split, aliases in _SPLITS.items():
    there = [name for name in usable if name in aliases]
    if len(there) > 1:
      raise UserError(
          f'{root} has both {there[0]}/ and {there[1]}/, which mean {split}: '
          'remove or rename one'
      )
    if there:
      found[split] = there[0]
  if 'train' in found:
    ignored['other folders'] += len(names) - len(found)
    folders(root, ignored)
    return found
  if named and (named == names or not of_classes):
    wanted = ' with a folder of images for each class' if of_classes else ''
    raise UserError(
        f'{root} has {", ".join(f"{name}/" for name in named)} but no train/'
        f'{wanted}'
    )
  return {UNDIVIDED: ''}


def folders(folder: pathlib.Path, ignored: Counter) -> list[str]:
  """Returns the names of the subfolders; counts everything else as ignored."""
  names = walk.visible(folder, ignored)
  found = [n for n in names if os.path.isdir(os.path.join(folder, n))]
  ignored.update(walk.suffix_of(n) for n in set(names) - set(found))
  return found
