"""Decodes every image once, as training does, and reports the findings."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
import contextlib
import hashlib
import itertools
import statistics
import warnings

import numpy as np

from gswinrmt_jax.data import collection as collections
from gswinrmt_jax.data import image_paths, parallel, pictures
from gswinrmt_jax.data.collection import Collection

_FILE = [('digest', 'u8'), ('size', 'i8')]  # size in bytes
_STORED = [  # the fields of `pictures.Stored`
    *zip(pictures.Stored._fields, ('i8', 'i8', 'U8', 'U8', '?'), strict=True)
]
# For a label image, also the number of pixels of each class and of `VOID`.
_LABEL = [('label_digest', 'u8'), ('label_size', 'i8'), ('pixels', 'u4', 256)]
FINDING = np.dtype(_FILE + _STORED)  # on a usable image
LABELLED = np.dtype(_FILE + _STORED + _LABEL)  # on an image and its label image
_EXAMPLES = 20  # most examples per list in the JSON
_PLAIN = ('RGB', 'L')  # modes that the printed report omits


def inspect(
    content: bytes,
    label_content: bytes = b'',
    coding: pictures.LabelCoding | None = None,
) -> tuple | str:
  """Returns the findings on an image file, or why it cannot be used.

  Args:
    content: The image file.
    label_content: Its label file, if it has one.
    coding: How the label file encodes classes; None if there is none.

  Returns:
    A row of `FINDING`, or of `LABELLED` with a label file; a reason as text.
  """
  try:
    image, stored = pictures.open_rgb(content)
  except ValueError as error:
    return str(error)
  finding = digest(content), len(content), *stored
  if not coding:
    return finding
  try:
    label = pictures.open_label(label_content, coding)
  except ValueError as error:
    return f'its label image {error}'
  if label.shape != (image.height, image.width):
    return (
        f'its label image has {label.shape[1]} x {label.shape[0]} pixels, the '
        f'image {image.width} x {image.height}'
    )
  pixels = np.bincount(label.ravel(), minlength=256)
  return *finding, digest(label_content), len(label_content), pixels


def digest(content: bytes) -> int:
  """Returns a 64-bit hash; 10^6 files collide with probability below 10^-7."""
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def inspect_all(
    name: str, collection: Collection, jobs: int
) -> tuple[np.ndarray, dict[str, str]]:
  """Inspects the images of a collection, called `name`, in `jobs` threads.

  Returns:
    The findings on the usable images, in the order of the splits: `LABELLED` if
    there are label images, else `FINDING`. The problems of the others, by file
    name.
  """
  images, labels = collection.images, collection.label_images

  def look(index):
    image = images[index]
    try:
      content = image_paths.read(collection.root, image)
      if not labels:
        return inspect(content)
      label_content = (labels.root / image.label_file).read_bytes()
      return inspect(content, label_content, labels.coding)
    except OSError as error:
      return error.strerror or str(error)

  table = np.zeros(len(images), LABELLED if labels else FINDING)
  problems = {}
  findings = parallel.in_threads(look, len(images), jobs)
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
  misnamed = [
      name
      for name, kind in zip(names, formats, strict=True)
      # MPO is a JPEG with further images after it.
      if kind.replace('MPO', 'JPEG') != image_paths.format_of(name)
  ]
  areas = table['width'] * table['height']

  def sized(row):
    width, height = table[['width', 'height']][row].tolist()
    return {'file_name': names[row], 'width': width, 'height': height}

  return {
      'images': str(collection.root),
      'source': collection.source,
      'notes': collection.notes,
      'class_names': list(collection.class_names),
      'splits': _splits(collection, table),
      'formats': dict(Counter(formats).most_common()),
      'modes': dict(Counter(modes).most_common()),
      'width': _range(table['width'].tolist()),
      'height': _range(table['height'].tolist()),
      'turned_by_exif': int(table['turned'].sum()),
      'suffix_of_another_format': len(misnamed),
      'first': {
          # Reversed, so that the first image of a mode overwrites the others.
          'by_mode': dict(zip(reversed(modes), reversed(names), strict=True)),
          'suffix_of_another_format': misnamed[:_EXAMPLES],
          'smallest': sized(areas.argmin()),
          'largest': sized(areas.argmax()),
      },
      'damaged': [
          {'file_name': name, 'problem': problem}
          for name, problem in problems.items()
      ],
      'identical': _identical(collection, table['digest']),
      'ignored': {k: v for k, v in collection.ignored.most_common() if v},
  }


def _splits(collection, table):
  """Returns the numbers of images, and of images or pixels per class."""
  found, start = {}, 0
  for split, images in collection.splits.items():
    if collection.label_images:
      pixels = table['pixels'][start : start + len(images)].sum(0, np.int64)
      counts = {
          'pixels_by_class': pixels[: len(collection.class_names)].tolist(),
          'pixels_without_class': int(pixels[pictures.VOID]),
      }
    else:
      by_class = collection.counts(split)
      counts = {'images_per_class': _range(by_class), 'by_class': by_class}
    found[split] = {'images': len(images), **counts}
    start += len(images)
  return found


def lines(name: str, report: dict) -> Iterator[str]:
  """Yields the lines of the printed report."""
  splits, first = report['splits'].items(), report['first']
  sizes = ', '.join(f'{split} {v["images"]:,}' for split, v in splits)
  classes = len(report['class_names'])
  named = collections.some(report['class_names'])
  yield f'{name}: {sizes} images of {classes:,} classes ({named})'
  yield from _class_lines(report)
  formats, modes = collections.listed(report['formats']), collections.listed(
      report['modes']
  )
  yield f'  formats: {formats}; modes: {modes}'
  width, height = _spread(report['width']), _spread(report['height'])
  yield f'  width {width}, height {height} (smallest / median / largest)'
  if first['smallest'] != first['largest']:
    shown = '{file_name} ({width} x {height})'.format_map
    least, most = shown(first['smallest']), shown(first['largest'])
    yield f'  smallest {least}, largest {most}'
  odd = [f'{k} {v}' for k, v in first['by_mode'].items() if k not in _PLAIN]
  if odd:
    yield f'  converted to RGB, the first of each mode: {", ".join(odd)}'
  if count := len(report['damaged']):
    yield f'  left out as damaged: {count:,}'
  if count := report['turned_by_exif']:
    yield f'  rotated by their EXIF: {count:,}'
  if count := report['suffix_of_another_format']:
    example = first['suffix_of_another_format'][0]
    yield f'  with the suffix of another format: {count:,}, the first {example}'
  if extra := report['identical']['extra']:
    yield f'  byte for byte like another: {collections.listed(extra)}'
  if count := report['identical']['of_several_classes']:
    names = ' and '.join(report['identical']['examples_of_several_classes'][0])
    yield f'  the same bytes in several classes: {count:,} times, first {names}'
  if report['ignored']:
    yield f'  skipped: {collections.listed(report["ignored"])}'
  for note in report['notes']:
    yield f'  {note}'


def _class_lines(report):
  """Yields the lines on classes of the printed report."""
  splits, names = report['splits'], report['class_names']
  if 'by_class' in splits['train']:
    spread = [
        f'{k} {_spread(v["images_per_class"])}' for k, v in splits.items()
    ]
    yield f'  of a class (fewest / median / most): {", ".join(spread)}'
    return
  void = []
  for split, found in splits.items():
    none = found['pixels_without_class']
    share = none / (none + sum(found['pixels_by_class']))
    void.append(f'{split} {share:.1%}')
  yield f'  pixels without a class: {", ".join(void)}'
  pixels = splits['train']['pixels_by_class']
  ranked = sorted(zip(pixels, names, strict=True))
  least, most = (
      f'{name} {count / max(1, sum(pixels)):.2%}'
      for count, name in (ranked[0], ranked[-1])
  )
  yield f'  of the others in train: {most} (most) to {least} (least)'
  value, first = (report['source'][k] for k in ('void', 'zero_is_void'))
  for label, (name, count) in enumerate(zip(names, pixels, strict=True)):
    if value == label + first:
      yield (
          f'  warning: --void {value} is the value of class {name!r}, which '
          'therefore has no pixels'
      )
    elif not count:
      yield f'  warning: class {name!r} has no pixels in train'


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


def _range(values):
  median = statistics.median_low(values)
  return {'min': min(values), 'median': median, 'max': max(values)}


def _spread(value):
  return ' / '.join(f'{value[key]:,}' for key in ('min', 'median', 'max'))
