"""Pictures of classes that are known by their WordNet identifiers.

A class is a folder n01440764, or a tar n01440764.tar as ImageNet is released;
the classes lie in one folder, or in one tar of tars.
"""

from collections import Counter
from collections.abc import Mapping
import pathlib
import re

from gswinrmt_jax.data import image_folders, image_tars
from gswinrmt_jax.data.collection import Picture
from gswinrmt_jax.errors import UserError

WNID = re.compile(r'n\d{8}')


def find(
    root: pathlib.Path,
    below: str,
    labels: Mapping[str, int],
    ignored: Counter,
    name: str,
) -> tuple[list[Picture], list[str]]:
  """Returns the pictures of the wanted classes.

  Args:
    root: What the pictures' names are relative to.
    below: A folder of classes or a tar of tars, relative to `root`.
    labels: The wanted classes, and their labels.
    ignored: Counts what is passed over.
    name: Of the data set, for the progress bar.

  Returns:
    The pictures, in order of the classes, and the identifiers of classes that
    are there without being wanted.

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


def is_there(root: pathlib.Path, below: str) -> bool:
  """Returns whether `find` would find a class in this folder."""
  if not (root / below).is_dir():
    return False
  return any(
      WNID.fullmatch(path.name.removesuffix('.tar'))
      for path in (root / below).iterdir()
  )


def _classes(root, below, ignored, labels, name):
  """Yields identifier and pictures; of unwanted folders the former alone."""
  import tqdm

  if (root / below).is_file():
    tars = image_tars.pictures_of_tars(root, below, ignored)
    yield from tqdm.tqdm(
        tars,
        desc=f'{name} list',
        total=len(labels),
        unit='class',
        disable=None,
    )
    return
  for entry in sorted((root / below).iterdir()):
    path = entry.relative_to(root).as_posix()
    if entry.name.startswith('.'):
      ignored['hidden'] += 1
    elif entry.suffix == '.tar' and entry.is_file():
      wanted = entry.stem in labels
      yield entry.stem, (
          image_tars.pictures(root, path, ignored) if wanted else ()
      )
    elif entry.is_dir():
      wanted = entry.name in labels
      yield entry.name, (
          (Picture(p, 0) for p in image_folders.walk(root, path, ignored))
          if wanted
          else ()
      )
    else:
      ignored[f'{entry.suffix or "files"} outside class folders'] += 1
