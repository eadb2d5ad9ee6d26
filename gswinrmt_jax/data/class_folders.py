"""Class folders: finds splits and classes, and reads the images in place."""

from collections import Counter
from collections.abc import Iterator
import functools
import os
import pathlib
import re
import shlex
from typing import Any

import numpy as np
import PIL.Image

from gswinrmt_jax import files
from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data import image_paths, pictures, sources
from gswinrmt_jax.data.collection import Collection, UNDIVIDED
from gswinrmt_jax.errors import did_you_mean, UserError

# The names of split folders, in any case; a year or 'set' may follow, as in
# train2017 and test_set.
_SPLITS = {
    'train': ('train', 'training'),
    'val': ('val', 'validation', 'valid'),
    'test': ('test', 'testing'),
}
_MORE = re.compile(r'[ _-]?(set|(19|20)\d\d)$')
_SAMPLED = 1000  # about the number of images whose headers a report reads


def find(root: pathlib.Path, *, pool: bool = False) -> Collection:
  """Returns the images below `root`, labelled by their class folders.

  `root` has any of train/, val/ and test/ with a folder for each class, or the
  class folders themselves, whose images are `UNDIVIDED`. Without train/, the
  first of the others says which classes there are. Labels follow the names of
  the class folders in their composed form (NFC), sorted by code point. A class
  folder may have images at any depth. Hidden files are skipped.

  Args:
    root: The folder.
    pool: If val or test has classes that train lacks, whether to pool all
      splits as `UNDIVIDED` instead of raising an error.

  Raises:
    UserError: If `root` has another layout, there are fewer than two classes,
      or a split has a class that train lacks; and as in `image_paths.find`.
  """
  ignored = Counter()
  parts = split_folders(root, ignored)
  classes = {
      split: folders(root / part, ignored) for split, part in parts.items()
  }
  first = next(iter(parts))  # It says which classes there are.
  own = classes[first]
  names = set().union(*classes.values())
  names = sorted(sorted(names), key=image_paths.composed)
  labels = {name: label for label, name in enumerate(names)}
  if len(names) < 2:
    hint = ''
    if names and UNDIVIDED in parts:  # Perhaps it is a folder around them.
      inside = len(folders(root / names[0], Counter()))
      hint = f'; {root / names[0]} has {inside}' * (inside > 1)
    raise UserError(
        f'{root} has {len(names)} class folder{"s" * (not names)}: two or more '
        f'are needed, each with the images of one class{hint}'
    )
  extra = [name for name in names if name not in own]
  if extra and not pool:
    split = next(each for each in classes if extra[0] in classes[each])
    near = did_you_mean(extra[0], own)
    raise UserError(
        f'{root}: {first} lacks the class {extra[0]!r} of {split}{near}'
    )
  images = {split: [] for split in parts}
  for split, part in parts.items():
    for name in classes[split]:
      below = f'{part}/{name}'.lstrip('/')
      images[split] += [
          image._replace(label=labels[name])
          for image in image_paths.find(root, below, ignored)
      ]
  collection = Collection(root, tuple(names), images, ignored)
  collection.notes += _doubts(root, parts, classes)
  if extra:
    collection.splits = {UNDIVIDED: collection.images}
  return collection


def split_folders(
    root: pathlib.Path, ignored: Counter, *, of_classes: bool = True
) -> dict[str, str]:
  """Returns {split: folder name}, or {UNDIVIDED: ''} without split folders.

  With `of_classes`, a folder with the name of a split counts only if it has
  subfolders: otherwise it may be a class that is called train. `ignored` counts
  what lies beside the split folders.

  Raises:
    UserError: If two folders name the same split, or there are split folders
      alone, without the subfolders of `of_classes`.
  """
  names = folders(root, Counter())
  named = [name for name in names if _split_of(name)]
  usable = named
  if of_classes:
    usable = [name for name in named if folders(root / name, Counter())]
  found = {}
  for split in _SPLITS:
    there = [name for name in usable if _split_of(name) == split]
    if len(there) > 1:
      raise UserError(
          f'{root} has both {there[0]}/ and {there[1]}/, which mean {split}: '
          'remove or rename one'
      )
    if there:
      found[split] = there[0]
  if found and ('train' in found or named == names or not of_classes):
    ignored['other folders'] += len(names) - len(found)
    folders(root, ignored)
    return found
  if named and named == names:
    there = ', '.join(f'{name}/' for name in named)
    raise UserError(f'{root} has {there} without a folder for each class')
  return {UNDIVIDED: ''}


def have_splits(root: pathlib.Path) -> bool:
  """Returns whether class folders are in split folders, not in `root`."""
  return UNDIVIDED not in split_folders(root, Counter())


def folders(folder: pathlib.Path, ignored: Counter) -> list[str]:
  """Returns the names of the subfolders; counts everything else as ignored."""
  names = image_paths.visible(folder, ignored)
  found = [n for n in names if os.path.isdir(os.path.join(folder, n))]
  ignored.update(image_paths.suffix_of(n) for n in set(names) - set(found))
  return found


def _split_of(name):
  """Returns the split that a folder's name stands for, None for other names."""
  plain = _MORE.sub('', name.lower())
  return next((s for s, names in _SPLITS.items() if plain in names), None)


def _doubts(root, parts, classes):
  """Yields warnings of folders left out, and of classes that may be none."""
  names = next(iter(classes.values()))
  for name in names:
    if _split_of(name):
      yield f'warning: the class {name!r} has the name of a split'
  seen = {}
  for name in names:
    other = seen.setdefault(image_paths.composed(name).lower(), name)
    if other != name:
      yield (
          f'warning: the classes {other!a} and {name!a} differ only in capital '
          'letters or the Unicode of accents: are they one class?'
      )
  part = next(iter(parts.values()))
  beside = folders(root, Counter()) if part else []
  for name in sorted(set(beside) - set(parts.values())):
    why = ': it has no class folders' * bool(_split_of(name))
    yield f'warning: {name}/ beside {part}/ is left out{why}'
  for place in dict.fromkeys([root, *(root / part for part in parts.values())]):
    inside = set(folders(place, Counter()))
    loose = [
        name
        for name in image_paths.visible(place, Counter())
        if image_paths.suffix_of(name) in image_paths.SUFFIXES
        and name not in inside
    ]
    if loose:
      yield (
          f'warning: images of {place} that are in no class folder are left '
          f'out: {collections.some(loose)}'
      )
  inner = [tuple(folders(root / part / name, Counter())) for name in names]
  if inner[0] and len(set(inner)) == 1:
    yield (
        f'warning: all classes ({collections.some(names)}) have the same '
        f'subfolders ({collections.some(inner[0])}): are these the classes?'
    )


# --- Read in place ---


def read(root: pathlib.Path, *, train: bool = True) -> Collection:
  """Returns the images of class folders, with train and val and any test.

  A walk over millions of files takes long, so the last result is kept until
  files are added to the class folders, or removed. What changes in folders
  inside of them is not seen meanwhile.

  Images without splits are divided 8 : 1 : 1, and if only val is missing, a
  tenth of train is held out for it, at random within each class, by seed 0.

  Args:
    root: The folder.
    train: Whether the images must be enough for training. Otherwise, train/ may
      be missing, and images that are too few to divide are all test.

  Raises:
    UserError: As in `find`, `collection.divide` and `collection.check`.
  """
  times = tuple(os.stat(place).st_mtime_ns for place in _outer_folders(root))
  found, why_not = _read(root, times)
  if train and why_not:
    raise UserError(why_not)
  return found


def _outer_folders(root):
  """Returns a folder, those in it, and those of classes in its splits."""
  places = [root, *(root / name for name in folders(root, Counter()))]
  for part in places[1:]:
    if _split_of(part.name):
      places += (part / name for name in folders(part, Counter()))
  return places


@functools.lru_cache(1)
def _read(root, times):
  """Reads class folders, whose `times` of change are for the cache alone.

  Returns:
    The images, and why they are not enough for training, '' if they are.
  """
  del times
  found = find(root)
  held_out = 'a tenth of each class, held out at random (seed 0)'
  if UNDIVIDED in found.splits:
    try:
      collections.divide(found, {'val': None, 'test': None}, None)
    except UserError as error:
      found.splits = {'test': found.images}
      found.notes.append('too few images to divide: all are test')
      return found, str(error)
    found.notes.append(f'val and test are each {held_out}')
  elif 'train' in found.splits and 'val' not in found.splits:
    whole = found.splits
    found.splits = {UNDIVIDED: whole['train']}
    try:
      collections.divide(found, {'val': None, 'test': 0}, None)
    except UserError as error:
      found.splits = whole
      return found, str(error)
    found.splits |= {k: v for k, v in whole.items() if k == 'test'}
    found.notes.append(f'val is {held_out}')
  try:
    collections.check(found)
  except UserError as error:  # Evaluation needs the classes of the weights.
    return found, str(error)
  return found, ''


def report(name: str, found: Collection) -> Iterator[str]:
  """Yields what can be said of class folders without decoding images."""
  sizes = {split: len(images) for split, images in found.splits.items()}
  yield collections.headline(name, sizes, found.class_names)
  counts = {split: {'by_class': found.counts(split)} for split in found.splits}
  yield from found.labels.lines(
      {'splits': counts, 'class_names': found.class_names}
  )
  yield from _sizes(found)
  if skipped := collections.listed(found.ignored):
    yield f'  skipped: {skipped}'
  for note in found.notes:
    yield f'  {note}'


def _sizes(found):
  """Yields sizes and damaged files, by the headers of a sample."""
  images = found.images
  some = images[:: max(1, -(-len(images) // _SAMPLED))]
  sizes, damaged = [], []
  for image in some:
    path = found.root / image.file_name
    try:
      with PIL.Image.open(path, formats=pictures.FORMATS) as opened:
        sizes.append(opened.size)
    except Exception:  # Pillow raises many types.
      damaged.append(image.file_name)
  of = f', of {len(some):,} images' * (len(some) < len(images))
  if sizes:
    sides = zip(*sizes, strict=True)
    yield collections.sides_line(*map(collections.summary, sides), of)
  if damaged:
    yield f'  warning: damaged or no images{of}: {collections.some(damaged)}'


class FolderSource(sources.Source):
  """A split of class folders; images are read and decoded at each access.

  Records are ordered by a hash of their file names, so a slice of a split is a
  mixed sample.

  Attributes:
    folder: The folder of the data set.
    split: The requested split or slices.
    label: The labels, int32 `[n]`.
  """

  def __init__(self, found: Collection, split: str):
    """Opens a split, or slices such as 'train[:90%]'.

    Raises:
      UserError: If there is no such split; the message lists the existing ones.
    """
    import tensorflow_datasets as tfds

    self.folder, self.split = found.root, split
    known = {
        name: tfds.core.SplitInfo(
            name=name, shard_lengths=[len(images)], num_bytes=0
        )
        for name, images in found.splits.items()
    }
    try:
      parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(known)
    # NotImplementedError: a slice of 'all'
    except (ValueError, AssertionError, NotImplementedError) as error:
      raise sources.no_split(found.root.name, split, known) from error
    self._images = []
    for part in parts:
      ordered = sorted(found.splits[part.splitname], key=collections.rank)
      self._images += ordered[part.from_ : part.to]
    if not self._images:
      raise sources.no_split(found.root.name, split, known)
    self.label = np.array([image.label for image in self._images], np.int32)

  def __len__(self) -> int:
    return len(self._images)

  def __getitem__(self, row: int) -> tuple[PIL.Image.Image, Any]:
    try:
      picture = pictures.read(self.folder / self.key(row))
    except UserError as error:
      raise UserError(
          f'{error}: repair or remove it (`gswinrmt prepare folder '
          f'{shlex.quote(str(self.folder))}` finds all such images)'
      ) from error
    return picture, int(self.label[row])

  def name(self, row: int) -> str:
    """Returns the path of an image, for messages."""
    return str(self.folder / self.key(row))

  def key(self, row: int) -> str:
    """Returns the path of an image below the folder."""
    return self._images[row].file_name

  def stored(self, row: int) -> bytes:
    """Returns the bytes of an image file."""
    return (self.folder / self.key(row)).read_bytes()

  def file_sizes(self) -> list[int]:
    """Returns the size of each image file, in bytes."""
    names = map(self.key, range(len(self)))
    # Not `pathlib`, which takes twice as long.
    return [os.stat(os.path.join(self.folder, n)).st_size for n in names]

  def content_checksum(self) -> str:
    """Returns a checksum of a sample of the files, and of all labels."""
    images = map(self.stored, self._sampled())
    return sources.checksum([*images, self.label.tobytes()])

  def cache_folders(self) -> list[pathlib.Path]:
    """Returns a folder of the user's cache, not one among the images."""
    place = sources.checksum([os.fsencode(self.folder)])[:8]
    return [files.user_cache() / f'{self.folder.name}_{place}']

  def fingerprint(self) -> str:
    """Returns a hash of names, classes, sizes and times of the files."""
    said = []
    for image in self._images:
      stat = os.stat(self.folder / image.file_name)
      said.append(
          (image.file_name, image.label, stat.st_size, stat.st_mtime_ns)
      )
    return sources.checksum(repr(each).encode() for each in said)
