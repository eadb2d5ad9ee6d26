"""Decodes every picture once, as training will, and reports what is found."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import functools
import hashlib
import itertools
import multiprocessing
import pathlib
import statistics
import warnings

import numpy as np

from gswinrmt_jax.data import parallel, pictures
from gswinrmt_jax.data.prepare import class_folders
from gswinrmt_jax.data.prepare import collection as collections
from gswinrmt_jax.data.prepare.collection import Collection, Picture
from gswinrmt_jax.errors import UserError

# What is found in a picture that can be used: 64 bits of the BLAKE2 hash of its
# bytes, their number, then what `pictures.Stored` has.
FINDING = np.dtype(
    [
        ('digest', np.uint64),
        ('size', np.int64),
        ('width', np.int64),
        ('height', np.int64),
        ('mode', 'U8'),
        ('format', 'U8'),
        ('turned', np.bool_),
    ]
)
_CHUNK = 32  # pictures handed to a process at a time
_EXAMPLES = 20  # of identical pictures and the like, in the JSON
_PLAIN = ('RGB', 'L')  # modes that need no mention


def inspect(content: bytes) -> tuple | str:
  """Returns a picture's `FINDING`, or why it cannot be used."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      _, stored = pictures.open_rgb(content)
  except ValueError as error:
    return str(error)
  return digest(content), len(content), *stored


def digest(content: bytes) -> int:
  """Returns 64 bits that differ between files; one chance in 10^7 for 10^6."""
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def inspect_all(
    root: pathlib.Path, wanted: Sequence[Picture], jobs: int
) -> Iterator[tuple | str]:
  """Yields what `inspect` finds in each picture below `root`, in order.

  Works in `jobs` processes; with one job, in this process.

  Raises:
    UserError: If a process dies.
  """
  inspect_here = functools.partial(_inspect_file, root)
  if jobs == 1:
    yield from map(inspect_here, wanted)
    return
  # Not forked: threads of this process may hold locks.
  spawn = multiprocessing.get_context('spawn')
  try:
    with concurrent.futures.ProcessPoolExecutor(
        jobs, spawn, parallel.begin_worker
    ) as pool:
      yield from pool.map(inspect_here, wanted, chunksize=_CHUNK)
  except concurrent.futures.BrokenExecutor as error:
    raise UserError(
        'a process that decodes pictures was killed (out of memory?): try a '
        'smaller --jobs'
    ) from error


def summarize(
    collection: Collection, table: np.ndarray, problems: Mapping[str, str]
) -> dict:
  """Returns the report of a collection, as `report.json` has it.

  Args:
    collection: The pictures that can be used.
    table: `FINDING` of each of them, of all splits in turn.
    problems: Why the others cannot be used, by file name.
  """
  names = [picture.file_name for picture in collection.pictures]
  formats, modes = table['format'].tolist(), table['mode'].tolist()
  first_of_mode = {}
  for name, mode in zip(names, modes, strict=True):
    first_of_mode.setdefault(mode, name)
  misnamed = [
      name
      for name, kind in zip(names, formats, strict=True)
      # MPO is a JPEG with further pictures after it.
      if kind.replace('MPO', 'JPEG') != class_folders.format_of(name)
  ]
  areas = table['width'] * table['height']
  extremes = {'smallest': areas.argmin(), 'largest': areas.argmax()}
  counts = {split: collection.counts(split) for split in collection.splits}
  return {
      'images': str(collection.root),
      'source': collection.source,
      'notes': collection.notes,
      'class_names': list(collection.class_names),
      'splits': {
          split: {
              'images': sum(by_class),
              'images_per_class': _range(by_class),
              'by_class': by_class,
          }
          for split, by_class in counts.items()
      },
      'formats': _counted(formats),
      'modes': _counted(modes),
      'width': _range(table['width'].tolist()),
      'height': _range(table['height'].tolist()),
      'turned_by_exif': int(table['turned'].sum()),
      'suffix_of_another_format': len(misnamed),
      'first': {
          'by_mode': first_of_mode,
          'suffix_of_another_format': misnamed[:_EXAMPLES],
          **{
              which: {
                  'file_name': names[row],
                  'width': int(table['width'][row]),
                  'height': int(table['height'][row]),
              }
              for which, row in extremes.items()
          },
      },
      'damaged': [
          {'file_name': name, 'problem': problem}
          for name, problem in problems.items()
      ],
      'identical': _identical(collection, table['digest']),
      'ignored': {k: v for k, v in collection.ignored.most_common() if v},
  }


def lines(name: str, report: dict) -> Iterator[str]:
  """Yields the report as it is printed."""
  splits, first = report['splits'].items(), report['first']
  sizes = ', '.join(f'{split} {v["images"]:,}' for split, v in splits)
  classes = len(report['class_names'])
  yield f'{name}: {sizes} pictures of {classes:,} classes'
  spread = (f'{split} {_spread(v["images_per_class"])}' for split, v in splits)
  yield f'  of a class (fewest / median / most): {", ".join(spread)}'
  formats, modes = _listed(report['formats']), _listed(report['modes'])
  yield f'  formats: {formats}; modes: {modes}'
  width, height = _spread(report['width']), _spread(report['height'])
  yield f'  width {width}, height {height} (smallest / median / largest)'
  if first['smallest'] != first['largest']:
    found = ', '.join(
        '{} {file_name} ({width} x {height})'.format(which, **first[which])
        for which in ('smallest', 'largest')
    )
    yield f'  {found}'
  odd = [f'{k} {v}' for k, v in first['by_mode'].items() if k not in _PLAIN]
  if odd:
    yield f'  converted to RGB, the first of each mode: {", ".join(odd)}'
  if count := len(report['damaged']):
    yield f'  left out as damaged: {count:,} (report.json)'
  if count := report['turned_by_exif']:
    yield f'  turned by their EXIF: {count:,}'
  if count := report['suffix_of_another_format']:
    example = first['suffix_of_another_format'][0]
    yield f'  with the suffix of another format: {count:,}, the first {example}'
  if extra := report['identical']['extra']:
    yield f'  byte for byte like another: {_listed(extra)}'
  if count := report['identical']['of_several_classes']:
    names = ' and '.join(report['identical']['examples_of_several_classes'][0])
    yield f'  the same bytes in several classes: {count:,} times, first {names}'
  if report['ignored']:
    yield f'  passed over: {_listed(report["ignored"])}'
  for note in report['notes']:
    yield f'  {note}'


def _inspect_file(root: pathlib.Path, picture: Picture) -> tuple | str:
  try:
    return inspect(collections.read(root, picture))
  except OSError as error:
    return error.strerror or str(error)


def _identical(collection, digests):
  """Returns what byte-identical pictures there are, within and across splits.

  Of k identical pictures in one split k - 1 count as extra; of those in a later
  split that an earlier one has too, all.
  """
  values, counts = np.unique(digests, return_counts=True)
  shared = set(values[counts > 1].tolist())
  members = ((s, p) for s, part in collection.splits.items() for p in part)
  groups = defaultdict(list)
  for member, value in zip(members, digests.tolist(), strict=True):
    if value in shared:
      groups[value].append(member)
  extra, labelled = Counter(), []
  for members in groups.values():
    by_label = {}
    for _, picture in members:
      by_label.setdefault(picture.label, picture.file_name)
    if len(by_label) > 1:
      labelled.append(list(by_label.values()))
    first, *later = count = Counter(split for split, _ in members)
    if count[first] > 1:
      extra[f'within {first}'] += count[first] - 1
    for split in later:
      extra[f'of {split} in {first}'] += count[split]
  return {
      'extra': dict(extra),
      'of_several_classes': len(labelled),
      'examples': [
          [picture.file_name for _, picture in members]
          for members in itertools.islice(groups.values(), _EXAMPLES)
      ],
      'examples_of_several_classes': labelled[:_EXAMPLES],
  }


def _range(values):
  return {
      'min': min(values),
      'median': statistics.median_low(values),
      'max': max(values),
  }


def _counted(values):
  return dict(Counter(values).most_common())


def _spread(value):
  return ' / '.join(f'{value[key]:,}' for key in ('min', 'median', 'max'))


def _listed(counts):
  return ', '.join(f'{key} {count:,}' for key, count in counts.items())
