"""What is suspicious about the records of a run: warnings before it starts."""

from collections import Counter
from collections.abc import Iterator, Mapping
import hashlib
import itertools
import shlex
from typing import Any

import numpy as np

from gswinrmt_jax.data import class_folders, detection, sources

_COMPARED = 30_000  # images of all splits, at most, that are read for overlaps
# Objects with a shorter side than this many pixels are hardly found: the finest
# map has a position for every fourth pixel. A smaller share of them is silent.
_LEAST_SIDE, _SMALL_SHARE = 3, 0.01


def overlaps(
    splits: Mapping[str, sources.Source],
) -> Iterator[str]:
  """Yields a warning for each pair of splits that share images.

  Images are compared by hashes of their bytes, without labels, if at most
  30,000 must be read: more would delay the start. Of class folders, these are
  only files of a size that several splits have (few, if they are photographs),
  and a line says if they are too many. `gswinrmt prepare` reads all images.

  Args:
    splits: The records of each, 'train' first.
  """
  compared = _of_equal_sizes(splits)
  number = sum(map(len, compared.values()))
  if number > _COMPARED:
    first = splits['train']
    if isinstance(first, class_folders.FolderSource):
      yield (
          f'whether the splits share images is not known: {number:,} files '
          'have sizes that several splits have, too many to read now; '
          f'`gswinrmt prepare folder {shlex.quote(str(first.folder))}` '
          'compares them'
      )
    return
  digests = {
      name: [
          hashlib.sha256(splits[name].image_bytes(row)).digest() for row in some
      ]
      for name, some in compared.items()
  }
  for one, other in itertools.combinations(digests, 2):
    known = set(digests[one])
    pairs = zip(compared[other], digests[other], strict=True)
    if both := [row for row, digest in pairs if digest in known]:
      are = 'image of {} is' if len(both) == 1 else 'images of {} are'
      yield (
          f'warning: {len(both):,} {are.format(other)} also in {one}, such as '
          f'{splits[other].name(both[0])}'
      )


def _of_equal_sizes(splits):
  """Returns the rows of each split whose bytes may be in another one."""
  folders = class_folders.FolderSource
  if not all(isinstance(source, folders) for source in splits.values()):
    return {name: range(len(source)) for name, source in splits.items()}
  sizes = {name: source.file_sizes() for name, source in splits.items()}
  found = Counter(size for each in sizes.values() for size in set(each))
  return {
      name: [row for row, size in enumerate(each) if found[size] > 1]
      for name, each in sizes.items()
  }


def object_sizes(train: detection.Decoded, smallest: float) -> Iterator[str]:
  """Yields a line on the sizes of objects, if any, next to the anchors'.

  Args:
    train: The training records.
    smallest: Side of the smallest anchors, in pixels.
  """
  _, resized = train.sides()
  if len(resized):
    roots = np.sqrt(resized.prod(1))
    least, low, high, most = np.percentile(roots, (0, 10, 90, 100))
    said = (
        f'objects have sides of {least:.0f} to {most:.0f} pixels after '
        f'resizing, 80 % of them {low:.0f} to {high:.0f}; the smallest anchors '
        f'have {smallest:g}'
    )
    if high < smallest / 2:
      said += ': consider a lower config.detector.anchor_scale'
    yield said


def too_small(train: Any) -> Iterator[str]:
  """Yields a warning if resizing makes many objects too small to be found."""
  if not isinstance(train, detection.Decoded):
    return
  stored, resized = (sides.min(1) for sides in train.sides())
  count = int(((resized < _LEAST_SIDE) & (stored >= _LEAST_SIDE)).sum())
  if count > _SMALL_SHARE * len(stored):
    long, short = train.image_size
    yield (
        f'warning: resizing images to fit {long} x {short} pixels makes '
        f'{count:,} of {len(stored):,} objects of train less than '
        f'{_LEAST_SIDE} pixels wide or high: consider a larger '
        'config.data.fit_within'
    )
