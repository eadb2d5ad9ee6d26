"""Finds the pictures in class folders, and divides them into splits."""

from collections import Counter
from collections.abc import Iterator
import os
import pathlib
import re

import PIL.Image

from gswinrmt_jax.data import pictures
from gswinrmt_jax.data.prepare import collection as collections
from gswinrmt_jax.data.prepare.collection import Collection, Picture, UNDIVIDED
from gswinrmt_jax.errors import UserError

# The format that each suffix stands for.
SUFFIXES = {
    suffix: kind
    for suffix, kind in sorted(PIL.Image.registered_extensions().items())
    if kind in pictures.FORMATS
}
_SPLITS = {
    'train': 'train',
    'val': 'val',
    'validation': 'val',
    'valid': 'val',
    'test': 'test',
}

_SHARE = 0.1  # of the pictures, for val and for test, unless given
_TAKEN = ('cifar10', 'digits', 'imagenet', 'mini_imagenet', 'downloads')


def check_name(name: str | None) -> None:
  """Checks that a user's data set may have this name.

  Raises:
    UserError: If TFDS would change it, or it means something else.
  """
  if not name:
    raise UserError(
        'a NAME is needed: gswinrmt prepare folder NAME --images DIR'
    )
  if not re.fullmatch('[a-z][a-z0-9_]*', name):
    raise UserError(
        f'{name!r} cannot be the name of a data set: small letters a to z, '
        'digits and underscores, a letter first'
    )
  if name in _TAKEN:
    raise UserError(f'the name {name} is taken: choose another')


def find_and_divide(
    root: pathlib.Path,
    *,
    val: float | None = None,
    test: float | None = None,
    seed: int | None = None,
) -> Collection:
  """Returns the pictures in class folders, divided if they are not yet.

  `val` and `test` are the shares of each class if `root` has no train/, a tenth
  by default; `seed` is that of the division, 0 by default.

  Raises:
    UserError: If the folders cannot be used, or they are divided already and a
      division is asked for.
  """
  collection = find(root)
  if UNDIVIDED not in collection.splits:
    return collections.keep_division(collection, val=val, test=test, seed=seed)
  shares = {
      'val': _SHARE if val is None else val,
      'test': _SHARE if test is None else test,
  }
  return collections.divide(collection, shares, seed or 0)


def find(root: pathlib.Path) -> Collection:
  """Returns the pictures below `root`, labelled by the folder they are in.

  `root` has train/ and any of val/ and test/ with a folder for each class, or
  the class folders themselves, whose pictures are `UNDIVIDED`. Labels are in
  the order of the sorted names of train's class folders, which are sorted by
  code point. In a class folder pictures may lie at any depth; symbolic links
  are followed, hidden files passed over.

  Raises:
    UserError: If the folders are none of these, a class is empty, a split has
      a class that train lacks, or links lead in circles.
  """
  ignored = Counter()
  found = list_files(root, ignored)
  first = next(iter(found))
  names = list(found[first])
  if not names:
    raise UserError(
        f'{root} has no class folders: a folder of pictures for each class is '
        'needed'
    )
  splits = {}
  for split, classes in found.items():
    for name, file_names in classes.items():
      if name not in names:
        raise UserError(
            f'{root}: {split} has a class {name!r} that train has not'
        )
      if split == first and not file_names:
        raise UserError(
            f'{root} has no pictures of class {name!r}: remove the folder, or '
            f'look at the suffixes ({", ".join(SUFFIXES)} are read)'
        )
    splits[split] = [
        Picture(file_name, label)
        for label, name in enumerate(names)
        for file_name in classes.get(name, ())
    ]
  return Collection(root, tuple(names), splits, ignored)


def list_files(
    root: pathlib.Path, ignored: Counter
) -> dict[str, dict[str, list[str]]]:
  """Returns {split: {class: image files}}, train or `UNDIVIDED` first."""
  if not root.is_dir():
    raise UserError(f'{root} is no directory')
  return {
      split: {
          name: list(walk(root, f'{part}/{name}'.lstrip('/'), ignored))
          for name in _folders(root / part, ignored)
      }
      for split, part in _parts(root, ignored).items()
  }


def walk(
    root: pathlib.Path,
    below: str,
    ignored: Counter,
    above: tuple[tuple[int, int], ...] = (),
) -> Iterator[str]:
  """Yields the image files in `root / below` at any depth, sorted.

  Names are relative to `root`. `ignored` counts what is passed over, by suffix;
  `above` are the folders that lead here, as device and inode.

  Raises:
    UserError: If a link leads to a folder that it is in, or a name is no UTF-8.
  """
  here = os.stat(root / below)
  here = here.st_dev, here.st_ino
  if here in above:
    raise UserError(f'{root / below} is a link to a folder that it is in')
  for entry in visible(root / below, ignored):
    name = f'{below}/{entry.name}'.lstrip('/')
    if is_folder(entry):
      yield from walk(root, name, ignored, (*above, here))
    elif suffix_of(name) in SUFFIXES:
      yield name
    else:
      ignored[suffix_of(name)] += 1


def suffix_of(file_name: str) -> str:
  """Returns '.jpg' of 'a/B.JPG', or 'without suffix'."""
  return os.path.splitext(file_name)[1].lower() or 'without suffix'


def format_of(file_name: str) -> str | None:
  """Returns the format that a file's suffix stands for."""
  return SUFFIXES.get(suffix_of(file_name))


def _parts(root: pathlib.Path, ignored: Counter) -> dict[str, str]:
  """Returns {split: name of its folder}, {UNDIVIDED: ''} without splits."""
  folders = _folders(root, Counter())
  found = {}
  for name in folders:
    if name not in _SPLITS or not _folders(root / name, Counter()):
      continue
    if _SPLITS[name] in found:
      raise UserError(
          f'{root} has both {found[_SPLITS[name]]}/ and {name}/, which mean '
          f'{_SPLITS[name]}: remove or rename one'
      )
    found[_SPLITS[name]] = name
  if 'train' not in found:
    if folders and set(folders) <= set(_SPLITS):
      raise UserError(
          f'{root} has {", ".join(f"{name}/" for name in folders)} but no '
          'train/ with a folder of pictures for each class'
      )
    return {UNDIVIDED: ''}
  ignored['folders beside train'] = len(folders) - len(found)
  _folders(root, ignored)
  order = ('train', 'val', 'test')
  return {split: found[split] for split in order if split in found}


def _folders(folder: pathlib.Path, ignored: Counter) -> list[str]:
  """Returns the folders in a folder; counts what else is in it."""
  names = []
  for entry in visible(folder, ignored):
    if is_folder(entry):
      names.append(entry.name)
    else:
      ignored[outside(entry.name)] += 1
  return names


def outside(file_name: str) -> str:
  """Returns the kind of a file beside the class folders, for the count."""
  suffix = suffix_of(file_name)
  kind = 'pictures' if suffix in SUFFIXES else suffix
  return f'{kind} outside class folders'


def visible(folder: pathlib.Path, ignored: Counter) -> list[os.DirEntry]:
  """Returns a folder's entries, sorted by name, without the hidden ones.

  Raises:
    UserError: If a name is no UTF-8.
  """
  with os.scandir(folder) as entries:
    entries = sorted(entries, key=lambda entry: entry.name)
  for entry in entries:
    try:
      entry.name.encode()
    except UnicodeEncodeError:
      raise UserError(
          f'{folder} has a name that is not UTF-8, {entry.name!r}: rename it'
      ) from None
  shown = [entry for entry in entries if not entry.name.startswith('.')]
  ignored['hidden'] += len(entries) - len(shown)
  return shown


def is_folder(entry: os.DirEntry) -> bool:
  """Returns whether an entry is a folder, or a link to one."""
  try:
    return entry.is_dir()
  except OSError:  # A link to itself; as a picture it will be unreadable.
    return False
