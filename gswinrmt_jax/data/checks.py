"""What is suspicious about the records of a run: warnings before it starts."""

from collections import Counter
from collections.abc import Iterator, Mapping
import hashlib
import itertools
import shlex
from typing import Any

import numpy as np

from gswinrmt_jax.data import class_folders, detection, sources

_COMPARED = 30_000  # most files of class folders that are read for overlaps
# Objects with a shorter side than this many pixels are hardly found: the finest
# map has a position for every fourth pixel. A smaller share of them is silent.
_LEAST_SIDE, _SMALL_SHARE = 3, 0.01


def overlaps(splits: Mapping[str, sources.Source]) -> Iterator[str]:
  """Yields a warning for each pair of splits that share images.

  Files of class folders are compared if several splits have one of that size:
  few, if they are photographs. A line says if they are too many to read. Slices
  in TFDS's format are compared by the places of their records; their images are
  not read.

  Args:
    splits: The records of each, 'train' first.
  """
  every = splits.values()
  if all(isinstance(each, class_folders.FolderSource) for each in every):
    yield from _equal_files(splits)
  elif all(isinstance(each, sources.TfdsSource) for each in every):
    for one, other in itertools.combinations(splits, 2):
      pairs = itertools.product(splits[one].places, splits[other].places)
      if count := sum(itertools.starmap(_in_both, pairs)):
        are = 'record of {} is' if count == 1 else 'records of {} are'
        yield f'warning: {count:,} {are.format(other)} also in {one}'


def _in_both(one, other):
  """Returns how many records are in two ranges of a file of records."""
  if one.filename != other.filename:
    return 0
  end = min(one.skip + one.take, other.skip + other.take)
  return max(0, end - max(one.skip, other.skip))


def _equal_files(splits):
  """Yields the warnings for class folders."""
  sizes = {name: source.file_sizes() for name, source in splits.items()}
  found = Counter(size for each in sizes.values() for size in set(each))
  compared = {
      name: [row for row, size in enumerate(each) if found[size] > 1]
      for name, each in sizes.items()
  }
  number = sum(map(len, compared.values()))
  if number > _COMPARED:
    folder = shlex.quote(str(splits['train'].folder))
    yield (
        f'the splits were not searched for shared images: {number:,} files '
        'have a size that occurs in another split, too many to read now; '
        f'`gswinrmt prepare folder {folder}` compares them'
    )
    return
  digests = {
      name: [hashlib.sha256(splits[name].stored(row)).digest() for row in rows]
      for name, rows in compared.items()
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


def object_sizes(
    train: detection.AnnotatedImages, smallest: float
) -> Iterator[str]:
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
  if not isinstance(train, detection.AnnotatedImages):
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
