"""What was found in a collection of pictures: as JSON, and in few lines."""

from collections import Counter, defaultdict
import itertools
import os
import statistics

import numpy as np

from gswinrmt_jax.data import image_folders
from gswinrmt_jax.data.collection import Collection, Picture
from gswinrmt_jax.data.inspect_images import Finding

_EXAMPLES = 20  # of identical pictures and the like, in the JSON
_PLAIN = ('RGB', 'L')  # modes of which nothing is said


class Tally:
  """Counts findings as they come.

  Attributes:
    damaged: The pictures that cannot be used, and why.
    digests: By split, of the pictures that can be.
    bytes: What these are together.
    decoded_now: How many were not known from an earlier run.
  """

  def __init__(self):
    self.damaged: list[tuple[Picture, str]] = []
    self.digests: dict[str, list[int]] = defaultdict(list)
    self.bytes = self.decoded_now = 0
    self._modes, self._formats = Counter(), Counter()
    self._widths, self._heights = Counter(), Counter()
    self._turned, self._misnamed = 0, []
    self._first_of_mode: dict[str, str] = {}
    self._smallest = self._largest = None

  def add(
      self, split: str, picture: Picture, finding: Finding, is_new: bool
  ) -> bool:
    """Counts one and returns whether it can be used."""
    self.decoded_now += is_new
    if finding.problem:
      self.damaged.append((picture, finding.problem))
      return False
    self.digests[split].append(finding.digest)
    self.bytes += finding.size
    self._modes[finding.mode] += 1
    self._formats[finding.format] += 1
    self._widths[finding.width] += 1
    self._heights[finding.height] += 1
    self._turned += finding.turned
    suffix = os.path.splitext(picture.file_name)[1].lower()
    named = image_folders.SUFFIXES.get(suffix)
    # MPO is a JPEG with further pictures behind it.
    if finding.format.replace('MPO', 'JPEG') != named:
      self._misnamed.append(picture.file_name)
    self._first_of_mode.setdefault(finding.mode, picture.file_name)
    sized = finding.width * finding.height, finding, picture.file_name
    if self._smallest is None or sized[0] < self._smallest[0]:
      self._smallest = sized
    if self._largest is None or sized[0] > self._largest[0]:
      self._largest = sized
    return True

  def as_json(self) -> dict:
    """Returns the counts."""
    return {
        'formats': dict(self._formats.most_common()),
        'bytes': self.bytes,
        'modes': dict(self._modes.most_common()),
        'width': _range(self._widths),
        'height': _range(self._heights),
        'turned_by_exif': self._turned,
        'suffix_of_another_format': len(self._misnamed),
        'first': {
            'by_mode': self._first_of_mode,
            'suffix_of_another_format': self._misnamed[:_EXAMPLES],
            'smallest': _sized(self._smallest),
            'largest': _sized(self._largest),
        },
        'damaged': [
            {'file_name': picture.file_name, 'problem': problem}
            for picture, problem in self.damaged
        ],
    }


def make(collection: Collection, tally: Tally, seconds: float) -> dict:
  """Returns the report of a collection whose damaged pictures are gone.

  Args:
    collection: What is left.
    tally: What was found.
    seconds: How long it took to decode those that no earlier run had.
  """
  splits = {}
  for split, pictures in collection.splits.items():
    counts = collection.counts(split)
    splits[split] = {
        'images': len(pictures),
        'images_per_class': {
            'min': min(counts),
            'median': statistics.median(counts),
            'max': max(counts),
        },
        'by_class': counts,
    }
  return {
      'images': str(collection.root),
      'source': collection.source,
      'notes': collection.notes,
      'class_names': list(collection.class_names),
      'splits': splits,
      **tally.as_json(),
      'identical': _identical(collection, tally.digests),
      'ignored': {k: v for k, v in collection.ignored.most_common() if v},
      'decoded_now': tally.decoded_now,
      'decoded_per_second': round(tally.decoded_now / max(seconds, 1e-3), 1),
  }


def lines(name: str, report: dict) -> list[str]:
  """Returns the report as it is printed."""
  splits = report['splits']
  sizes = ', '.join(f'{s} {v["images"]:,}' for s, v in splits.items())
  classes = len(report['class_names'])
  spread = ', '.join(
      f'{split} {v["min"]:,} / {v["median"]:,g} / {v["max"]:,}'
      for split, v in (
          (split, value['images_per_class']) for split, value in splits.items()
      )
  )
  return [
      f'{name}: {sizes} pictures of {classes:,} classes',
      f'  of a class (fewest / median / most): {spread}',
      f'  formats: {_listed(report["formats"])}; modes: '
      f'{_listed(report["modes"])}',
      f'  width {_spread(report["width"])}, height {_spread(report["height"])} '
      '(smallest / median / largest)',
      *_remarks(report),
      f'  decoded {report["decoded_now"]:,} at '
      f'{report["decoded_per_second"]:,g} a second',
  ]


def _remarks(report):
  """Yields a line for each thing that is not as one would wish."""
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
    yield f'  brought to RGB, the first of each mode: {", ".join(odd)}'
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


def _identical(collection, digests):
  """Returns what byte-identical pictures there are, within and across splits.

  Of k identical pictures in one split k - 1 count as extra; of those in a later
  split that an earlier one has too, all.
  """
  pictures = list(itertools.chain.from_iterable(collection.splits.values()))
  splits = [s for s, part in collection.splits.items() for _ in part]
  values = np.fromiter(
      itertools.chain.from_iterable(digests[s] for s in collection.splits),
      np.uint64,
      len(pictures),
  )
  order = np.argsort(values, kind='stable')
  same = values[order][1:] == values[order][:-1]
  shared = np.append(same, False) | np.append(False, same)
  extra, examples, labelled = Counter(), [], []
  for _, rows in itertools.groupby(order[shared], lambda row: values[row]):
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


def _sized(found):
  _, finding, name = found
  return {'file_name': name, 'width': finding.width, 'height': finding.height}


def _range(counts):
  values = sorted(counts)
  below = itertools.accumulate(counts[value] for value in values)
  half = counts.total() / 2
  median = next((v for v, n in zip(values, below, strict=True) if n >= half), 0)
  return {'min': values[0], 'median': median, 'max': values[-1]}


def _spread(value):
  return ' / '.join(str(value[key]) for key in ('min', 'median', 'max'))


def _listed(counts):
  return ', '.join(f'{key} {count:,}' for key, count in counts.items())
