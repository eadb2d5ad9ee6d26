"""Decodes every picture once, as training will, and reports what is found."""

from collections import Counter
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
_PLAIN = ('RGB', 'L')  # modes that go without saying


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
  """Yields what `inspect` finds in each picture, in order.

  Args:
    root: Directory that their paths are relative to.
    wanted: The pictures.
    jobs: Processes; 1 for none but this one.

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
    collection: Collection,
    table: np.ndarray,
    problems: Mapping[str, str],
    seconds: float,
) -> dict:
  """Returns the report of a collection.

  Args:
    collection: The pictures that can be used.
    table: `FINDING` of each of them, of all splits in turn.
    problems: Why the others cannot, by file name.
    seconds: How long it took to decode all.
  """
  names = [p.file_name for part in collection.splits.values() for p in part]
  misnamed = [
      name
      for name, kind in zip(names, table['format'].tolist(), strict=True)
      # MPO is a JPEG with further pictures after it.
      if kind.replace('MPO', 'JPEG') != class_folders.format_of(name)
  ]
  modes, first = np.unique(table['mode'], return_index=True)
  by_place = sorted(zip(first.tolist(), modes.tolist(), strict=True))
  areas = table['width'] * table['height']
  return {
      'images': str(collection.root),
      'source': collection.source,
      'notes': collection.notes,
      'class_names': list(collection.class_names),
      'splits': {
          split: _split(collection, split) for split in collection.splits
      },
      'formats': _counted(table['format'].tolist()),
      'bytes': int(table['size'].sum()),
      'modes': _counted(table['mode'].tolist()),
      'width': _range(table['width']),
      'height': _range(table['height']),
      'turned_by_exif': int(table['turned'].sum()),
      'suffix_of_another_format': len(misnamed),
      'first': {
          'by_mode': {mode: names[place] for place, mode in by_place},
          'suffix_of_another_format': misnamed[:_EXAMPLES],
          'smallest': _sized(names, table, areas.argmin()),
          'largest': _sized(names, table, areas.argmax()),
      },
      'damaged': [
          {'file_name': name, 'problem': problem}
          for name, problem in problems.items()
      ],
      'identical': _identical(collection, table['digest']),
      'ignored': {k: v for k, v in collection.ignored.most_common() if v},
      'decoded_per_second': round(
          (len(table) + len(problems)) / max(seconds, 1e-3), 1
      ),
  }


def lines(name: str, report: dict) -> list[str]:
  """Returns the report as it is printed."""
  splits = report['splits']
  sizes = ', '.join(f'{s} {v["images"]:,}' for s, v in splits.items())
  classes = len(report['class_names'])
  per_class = {s: v['images_per_class'] for s, v in splits.items()}
  spread = ', '.join(
      f'{split} {v["min"]:,} / {v["median"]:,g} / {v["max"]:,}'
      for split, v in per_class.items()
  )
  return [
      f'{name}: {sizes} pictures of {classes:,} classes',
      f'  of a class (fewest / median / most): {spread}',
      f'  formats: {_listed(report["formats"])}; modes: '
      f'{_listed(report["modes"])}',
      f'  width {_spread(report["width"])}, height {_spread(report["height"])} '
      '(smallest / median / largest)',
      *_remarks(report),
      f'  decoded {report["decoded_per_second"]:,g} a second',
  ]


def _inspect_file(root: pathlib.Path, picture: Picture) -> tuple | str:
  try:
    return inspect(collections.read(root, picture))
  except OSError as error:
    return error.strerror or str(error)


def _remarks(report):
  """Yields a line for each thing that the user may want to look at."""
  first = report['first']
  if first['smallest'] != first['largest']:
    sizes = (
        f'{kind} {first[kind]["file_name"]} ({first[kind]["width"]} x '
        f'{first[kind]["height"]})'
        for kind in ('smallest', 'largest')
    )
    yield f'  {", ".join(sizes)}'
  odd = [f'{k} {v}' for k, v in first['by_mode'].items() if k not in _PLAIN]
  if odd:
    yield f'  converted to RGB, the first of each mode: {", ".join(odd)}'
  if count := len(report['damaged']):
    yield f'  left out as damaged: {count:,} (report.json)'
  if count := report['turned_by_exif']:
    yield f'  turned by their EXIF: {count:,}'
  if count := report['suffix_of_another_format']:
    name = first['suffix_of_another_format'][0]
    yield f'  with the suffix of another format: {count:,}, the first {name}'
  if report['identical']['extra']:
    extra = _listed(report['identical']['extra'])
    yield f'  byte for byte like another: {extra}'
  if several := report['identical']['of_several_classes']:
    names = ' and '.join(report['identical']['examples_of_several_classes'][0])
    said = f'{several:,} times, first {names}'
    yield f'  the same bytes in several classes: {said}'
  if report['ignored']:
    yield f'  passed over: {_listed(report["ignored"])}'
  yield from (f'  {note}' for note in report['notes'])


def _split(collection, split):
  counts = collection.counts(split)
  return {
      'images': len(collection.splits[split]),
      'images_per_class': {
          'min': min(counts),
          'median': statistics.median(counts),
          'max': max(counts),
      },
      'by_class': counts,
  }


def _identical(collection, digests):
  """Returns what byte-identical pictures there are, within and across splits.

  Of k identical pictures in one split k - 1 count as extra; of those in a later
  split that an earlier one has too, all.
  """
  pictures = list(itertools.chain.from_iterable(collection.splits.values()))
  splits = [s for s, part in collection.splits.items() for _ in part]
  order = np.argsort(digests, kind='stable')
  same = digests[order][1:] == digests[order][:-1]
  shared = np.append(same, False) | np.append(False, same)
  extra, examples, labelled = Counter(), [], []
  for _, rows in itertools.groupby(order[shared], lambda row: digests[row]):
    members = [(splits[row], pictures[row]) for row in rows]
    by_label = {}
    for _, picture in members:
      by_label.setdefault(picture.label, picture.file_name)
    if len(by_label) > 1:
      labelled.append(list(by_label.values()))
    examples.append([picture.file_name for _, picture in members])
    count = Counter(split for split, _ in members)
    first, *later = count
    extra[f'within {first}'] += count[first] - 1
    for split in later:
      extra[f'of {split} in {first}'] += count[split]
  return {
      'extra': {place: count for place, count in extra.items() if count},
      'of_several_classes': len(labelled),
      'examples': examples[:_EXAMPLES],
      'examples_of_several_classes': labelled[:_EXAMPLES],
  }


def _sized(names, table, row):
  sides = {side: int(table[row][side]) for side in ('width', 'height')}
  return {'file_name': names[row], **sides}


def _range(values):
  ordered = np.sort(values).tolist()
  middle = (len(ordered) - 1) // 2  # the lower of two
  return {'min': ordered[0], 'median': ordered[middle], 'max': ordered[-1]}


def _counted(values):
  return dict(Counter(values).most_common())


def _spread(value):
  return ' / '.join(str(value[key]) for key in ('min', 'median', 'max'))


def _listed(counts):
  return ', '.join(f'{key} {count:,}' for key, count in counts.items())
