"""A collection of image files that is to become a data set."""

from collections import Counter
import dataclasses
import os
import pathlib
from typing import NamedTuple

from gswinrmt_jax.errors import UserError


class Picture(NamedTuple):
  """An image file, or a member of an uncompressed tar.

  Attributes:
    file_name: Path relative to the collection's root, with slashes.
    label: Index of its class.
    archive: The tar that holds it, relative to the root; empty for a file.
    offset: Where in the tar its bytes start.
    size: How many they are; of a file it is not asked beforehand.
  """

  file_name: str
  label: int
  archive: str = ''
  offset: int = 0
  size: int = 0


@dataclasses.dataclass
class Collection:
  """Pictures by split, and what has to be said of where they are from.

  Attributes:
    root: What the pictures' paths are relative to.
    class_names: By label.
    splits: Pictures of train and any of val and test.
    ignored: How many files were passed over, by their kind.
    source: How the splits came about, for the report.
    notes: What the user should know, a line each.
  """

  root: pathlib.Path
  class_names: tuple[str, ...]
  splits: dict[str, list[Picture]]
  ignored: Counter = dataclasses.field(default_factory=Counter)
  source: dict = dataclasses.field(default_factory=dict)
  notes: list[str] = dataclasses.field(default_factory=list)

  def counts(self, split: str) -> list[int]:
    """Returns how many pictures of a split each class has."""
    found = Counter(picture.label for picture in self.splits[split])
    return [found[label] for label in range(len(self.class_names))]


def stamp(root: pathlib.Path, picture: Picture) -> tuple[int, int]:
  """Returns size and time of change, by which a changed file is told.

  Raises:
    OSError: If there is no such file.
  """
  found = os.stat(os.path.join(root, picture.archive or picture.file_name))
  size = picture.size if picture.archive else found.st_size
  return size, found.st_mtime_ns


def read(root: pathlib.Path, picture: Picture) -> bytes:
  """Returns a picture's bytes.

  Raises:
    OSError: If they cannot be read.
  """
  path = os.path.join(root, picture.archive or picture.file_name)
  with open(path, 'rb') as file:
    if not picture.archive:
      return file.read()
    file.seek(picture.offset)
    return file.read(picture.size)


def check(collection: Collection) -> None:
  """Checks that the collection can be a data set.

  Raises:
    UserError: If there are fewer than two classes, a name that TFDS cannot
      keep, or a class without pictures to train with.
  """
  names = collection.class_names
  if len(names) < 2:
    raise UserError(
        f'{collection.root} has one class only, {names[0]!r}: a data set needs '
        'two or more'
    )
  for name in names:
    # TFDS keeps them as the lines of a text file, and strips those.
    if name != name.strip() or len(name.splitlines()) > 1:
      raise UserError(
          f'the class {name!r} has blanks at its ends or a line break in its '
          'name: rename it'
      )
  for split, pictures in collection.splits.items():
    if not pictures:
      raise UserError(f'{collection.root}: no picture is left for {split}')
  for name, count in zip(names, collection.counts('train'), strict=True):
    if not count:
      raise UserError(f'class {name!r} has no picture to train with')
