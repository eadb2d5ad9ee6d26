"""Decodes every image once, as training does, and reports the findings."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
import contextlib
import itertools
import warnings

import numpy as np

from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data import image_paths, parallel, pictures
from gswinrmt_jax.data.collection import Collection

_FILE = [('digest', 'u8'), ('size', 'i8')]  # size in bytes
_STORED = [  # the fields of `pictures.Stored`
    *zip(pictures.Stored._fields, ('i8', 'i8', 'U8', 'U8', '?'), strict=True)
]
_EXAMPLES = 20  # most examples per list in the JSON
_PLAIN = ('RGB', 'L')  # modes that the printed report omits


def finding_type(labels: collections.ClassLabels) -> np.dtype:
  """Returns the type of the findings on an image and its labels."""
  return np.dtype([*_FILE, *_STORED, *labels.findings])


def inspect(
    collection: Collection, image: image_paths.ImageFile
) -> tuple | str:
  """Returns the findings on an image, or why it cannot be used."""
  try:
    content = image_paths.read(collection.root, image)
    picture, stored = pictures.open_rgb(content)
    of_labels = collection.labels.inspect(image, picture)
  except OSError as error:
    return error.strerror or str(error)
  except ValueError as error:
    return str(error)
  return image_paths.digest(content), len(content), *stored, *of_labels


def inspect_all(
    name: str, collection: Collection, jobs: int
) -> tuple[np.ndarray, dict[str, str]]:
  """Inspects the images of a collection, called `name`, in `jobs` threads.

  Returns:
    The findings on the usable images, in the order of the splits, of the type
    `finding_type`. The problems of the others, by file name.
  """
  import grain

  images = collection.images
  table = np.zeros(len(images), finding_type(collection.labels))
  problems = {}
  dataset = grain.MapDataset.source(images)
  dataset = dataset.map(lambda image: inspect(collection, image))
  findings = parallel.in_threads(dataset, jobs)
  with contextlib.closing(findings), warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Around all: filters are not per thread.
    bar = parallel.with_bar(findings, f'{name} check', len(images))
    for row, finding in enumerate(bar):
      if isinstance(finding, str):
        problems[images[row].file_name] = finding
      else:
        table[row] = finding
  return table[table['size'] > 0], problems


def summarize(
    collection: Collection, table: np.ndarray, problems: Mapping[str, str]
) -> dict:
  """Returns the report on the usable images, the content of `report.json`.

  `table` has their findings, one split after another, and `problems` say why
  other images are left out, by file name.
  """
  names = [image.file_name for image in collection.images]
  formats, modes = table['format'].tolist(), table['mode'].tolist()
  areas = table['width'] * table['height']
  splits, start = {}, 0
  for split, images in collection.splits.items():
    part = table[start : start + len(images)]
    counts = collection.labels.counts(collection, split, part)
    splits[split] = {'images': len(images), **counts}
    start += len(images)

  def sized(row):
    width, height = table[['width', 'height']][row].tolist()
    return {'file_name': names[row], 'width': width, 'height': height}

  return {
      'images': str(collection.root),
      'source': collection.source,
      'notes': collection.notes,
      'class_names': list(collection.class_names),
      'splits': splits,
      'formats': dict(Counter(formats).most_common()),
      'modes': dict(Counter(modes).most_common()),
      'width': collections.summary(table['width'].tolist()),
      'height': collections.summary(table['height'].tolist()),
      'turned_by_exif': int(table['turned'].sum()),
      'first': {
          # Reversed, so that the first image of a mode overwrites the others.
          'by_mode': dict(zip(reversed(modes), reversed(names), strict=True)),
          'smallest': sized(areas.argmin()),
          'largest': sized(areas.argmax()),
      },
      'left_out': [
          {'file_name': name, 'problem': problem}
          for name, problem in problems.items()
      ],
      'identical': _identical(collection, table['digest']),
      'ignored': {k: v for k, v in collection.ignored.most_common() if v},
  }


def lines(
    name: str, labels: collections.ClassLabels, report: dict
) -> Iterator[str]:
  """Yields the lines of the printed report."""
  first = report['first']
  sizes = {split: part['images'] for split, part in report['splits'].items()}
  yield collections.headline(name, sizes, report['class_names'])
  yield from labels.lines(report)
  formats, modes = map(collections.listed, (report['formats'], report['modes']))
  yield f'  formats: {formats}; modes: {modes}'
  yield collections.sides_line(report['width'], report['height'])
  if first['smallest'] != first['largest']:
    shown = '{file_name} ({width} x {height})'.format_map
    least, most = shown(first['smallest']), shown(first['largest'])
    yield f'  smallest {least}, largest {most}'
  odd = [f'{k} {v}' for k, v in first['by_mode'].items() if k not in _PLAIN]
  if odd:
    yield f'  converted to RGB, the first of each mode: {", ".join(odd)}'
  if left_out := report['left_out']:
    shown = '{file_name} ({problem})'.format_map(left_out[0])
    yield f'  left out: {len(left_out):,}, the first {shown}'
  if count := report['turned_by_exif']:
    told = '' if labels.by_class else '; labels are those of the rotated images'
    yield f'  rotated by their EXIF: {count:,}{told}'
  if extra := report['identical']['extra']:
    names = ' and '.join(report['identical']['examples'][0][:2])
    yield (
        f'  byte for byte like another: {collections.listed(extra)}, first '
        f'{names}'
    )
  if count := report['identical']['of_several_classes']:
    names = ' and '.join(report['identical']['examples_of_several_classes'][0])
    yield f'  the same bytes in several classes: {count:,} times, first {names}'
  if report['ignored']:
    yield f'  skipped: {collections.listed(report["ignored"])}'
  for note in report['notes']:
    yield f'  {note}'


def _identical(collection, digests):
  """Finds images that are identical byte for byte.

  Of k identical images in the first split that has them, k - 1 count as extra;
  in later splits, all count.
  """
  groups = defaultdict(list)
  members = ((s, p) for s, part in collection.splits.items() for p in part)
  values, counts = np.unique(digests, return_counts=True)
  shared = set(values[counts > 1].tolist())
  for member, value in zip(members, digests.tolist(), strict=True):
    if value in shared:
      groups[value].append(member)
  extra, labelled = Counter(), []
  for members in groups.values():
    by_label = {}
    for _, image in members:
      by_label.setdefault(image.label, image.file_name)
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
          [image.file_name for _, image in members]
          for members in itertools.islice(groups.values(), _EXAMPLES)
      ],
      'examples_of_several_classes': labelled[:_EXAMPLES],
  }
