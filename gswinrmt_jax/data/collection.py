"""Collections of image files by split and class, and their random division."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import pathlib
import statistics
from typing import Any

import numpy as np
import PIL.Image

from gswinrmt_jax.data import image_paths
from gswinrmt_jax.data.image_paths import ImageFile
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import counted

UNDIVIDED = ''  # the split of images that are not divided yet
_NAMED = 10  # most class names that a report prints
_SHARE = 0.1  # default share of each class, for val and for test


class ClassLabels:
  """The labels of images in class folders: each image has one class.

  Another kind of labels is a subclass; `prepare.label_images.LabelImages` has
  the class of each pixel.

  Attributes:
    by_class: Whether an image has one class, by which images are divided.
    findings: Fields of NumPy for what `inspect` finds.
  """

  by_class = True
  findings: Sequence[tuple] = ()

  def files(self, image: ImageFile) -> list[pathlib.Path]:
    """Returns the files that belong to an image."""
    del image
    return []

  def inspect(self, image: ImageFile, picture: PIL.Image.Image) -> tuple:
    """Returns the `findings` on the labels of a decoded image.

    Raises:
      OSError: If their file cannot be read.
      ValueError: If they cannot be used; the message says why.
    """
    del image, picture
    return ()

  def check(self, collection: 'Collection', table: np.ndarray) -> None:
    """Checks the labels by the findings on all usable images.

    Names the classes, if only the findings show them.

    Raises:
      UserError: If the labels seem to be mistaken.
    """

  def counts(
      self, collection: 'Collection', split: str, table: np.ndarray
  ) -> dict[str, Any]:
    """Returns the report's numbers of a split, whose findings are `table`."""
    del table
    return {'by_class': collection.counts(split)}

  def lines(self, report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines on classes of the printed report."""
    spreads = (
        f'{split} {spread(found["by_class"])}'
        for split, found in report['splits'].items()
    )
    yield f'  of a class (fewest / median / most): {", ".join(spreads)}'
    for split, found in report['splits'].items():
      named = zip(report['class_names'], found['by_class'], strict=True)
      if without := [name for name, count in named if not count]:
        yield f'  warning: {split} has no image of {some(without)}'

  def features(self, class_names: Sequence[str]) -> dict[str, Any]:
    """Returns the features of TFDS that hold the labels."""
    import tensorflow_datasets as tfds

    return {'label': tfds.features.ClassLabel(names=class_names)}

  def metadata(self, table: np.ndarray) -> dict[str, Any] | None:
    """Returns the metadata of the data set."""

  def example(self, image: ImageFile, finding: np.void) -> dict[str, Any]:
    """Returns the values of `features` for an image."""
    del finding
    return {'label': image.label}


@dataclasses.dataclass
class Collection:
  """Images by split, and where they come from.

  Attributes:
    root: Directory that the images' paths are relative to.
    class_names: Names of the classes, in the order of the labels. For label
      images whose classes have no names, empty until inspection.
    splits: Images of train and any of val and test, or `UNDIVIDED`.
    ignored: Number of skipped files, by kind.
    source: Origin of the splits, for the report.
    notes: Notes for the user, one line each.
    labels: The kind of labels.
    unpaired: Why images or label images without a counterpart are left out.
  """

  root: pathlib.Path
  class_names: tuple[str, ...]
  splits: dict[str, list[ImageFile]]
  ignored: Counter = dataclasses.field(default_factory=Counter)
  source: dict = dataclasses.field(default_factory=dict)
  notes: list[str] = dataclasses.field(default_factory=list)
  labels: ClassLabels = dataclasses.field(default_factory=ClassLabels)
  unpaired: dict[str, str] = dataclasses.field(default_factory=dict)

  @property
  def images(self) -> list[ImageFile]:
    """The images of all splits, one split after another."""
    return [image for part in self.splits.values() for image in part]

  def remove(self, names: Container[str]) -> None:
    """Removes the images with these file names."""
    for split, images in self.splits.items():
      self.splits[split] = [i for i in images if i.file_name not in names]

  def counts(self, split: str) -> list[int]:
    """Returns the number of images of each class in a split."""
    found = Counter(image.label for image in self.splits[split])
    return [found[label] for label in range(len(self.class_names))]


def check(collection: Collection) -> None:
  """Checks that the collection can be written as a data set.

  Raises:
    UserError: If there is no train; if a class has no name, two have the same,
      or TFDS cannot store it; if a split has no images, or a class has no
      training images.
  """
  if 'train' not in collection.splits:
    there = ', '.join(f'{split}/' for split in collection.splits)
    of_classes = ' for each class' * collection.labels.by_class
    raise UserError(
        f'{collection.root} has {there} but no train/ with images{of_classes}'
    )
  for name, count in Counter(collection.class_names).items():
    if not name:
      raise UserError(f'{collection.root}: a class has no name')
    if count > 1:
      raise UserError(f'{collection.root}: {count} classes are named {name!r}')
    # TFDS stores class names as lines of a text file, stripped.
    if not image_paths.is_utf8(name):
      raise UserError(f'the class {name!a} is not UTF-8: rename it')
    if name != name.strip() or len(name.splitlines()) > 1:
      raise UserError(
          f'the class {name!r} has blanks at its ends or a line break in its '
          'name: rename it'
      )
  for split, images in collection.splits.items():
    if not images:
      reason = next(iter(collection.unpaired.items()), None)
      reason = f': {reason[0]} {reason[1]}' if reason else ''
      raise UserError(
          f'{collection.root}: no image is left for {split}{reason}'
      )
  if not collection.labels.by_class:
    return  # Classes of pixels may be missing.
  counts = collection.counts('train')
  if 0 in counts:
    name = collection.class_names[counts.index(0)]
    raise UserError(
        f'{collection.root}: class {name!r} has no image to train with; remove '
        'it, or look at the suffixes of its files'
    )


def divide(
    collection: Collection,
    shares: Mapping[str, float | None],
    seed: int | None,
) -> Collection:
  """Divides the `UNDIVIDED` images of a collection at random, by class.

  Of the n images of a class, `floor(n share + 1/2)` go to each split but train,
  which gets the rest. They are ordered by the SHA-256 of 'SEED:FILE_NAME': the
  first go to test, the next to val. The division is therefore the same on every
  machine, and adding or removing an image moves few others. Images that have
  several classes are divided as one class.

  Args:
    collection: Modified and returned; unchanged if it already has splits.
    shares: Shares of val and test; 0 omits the split, None means a tenth.
    seed: Seed of the order; None means 0.

  Raises:
    UserError: If a share or seed is given although there are splits already, if
      there is no image, if the shares leave nothing of a class for train, or if
      val or test would get no image.
  """
  if UNDIVIDED not in collection.splits:
    for name, value in {**shares, 'seed': seed}.items():
      if value is not None:
        raise UserError(
            f'{collection.root} has its own splits, so --{name} has no effect'
        )
    collection.source['division'] = 'as the folders are'
    return collection
  shares = {k: _SHARE if v is None else v for k, v in shares.items()}
  seed = seed or 0
  # Written so that NaN is refused too.
  if not (min(shares.values()) >= 0 and sum(shares.values()) < 1):
    given = ' and '.join(f'--{k}={v:g}' for k, v in shares.items())
    raise UserError(f'{given}: must not be negative, and together below 1')
  if not collection.images:
    unpaired = map(' '.join, collection.unpaired.items())
    reason = next(unpaired, 'look at the suffixes of its files')
    raise UserError(f'{collection.root}: no image is left for train: {reason}')
  wanted = [split for split in ('test', 'val') if shares[split]]
  splits = {split: [] for split in ('train', *reversed(wanted))}
  groups = [f'class {name!r}' for name in collection.class_names]
  advice = 'add some, or divide them yourself, into train/, val/ and test/'
  if not collection.labels.by_class:
    groups = [str(collection.root)]
    advice = 'add some, or change --val and --test (0 omits a split)'
  classes = [[] for _ in groups]
  for image in collection.splits[UNDIVIDED]:
    classes[image.label].append(image)
  for name, images in zip(groups, classes, strict=True):
    images.sort(key=lambda image: _drawn(image, seed))
    start = 0
    for split in wanted:
      stop = start + int(len(images) * shares[split] + 0.5)
      splits[split] += images[start:stop]
      start = stop
    if images and start >= len(images):  # `check` refuses an empty class.
      raise UserError(
          f'{name} has {counted(len(images), "image")}, of which none is left '
          f'for train: {advice}'
      )
    splits['train'] += images[start:]
  for split in wanted:
    if not splits[split]:
      whole = 'every class' if collection.labels.by_class else 'the images'
      raise UserError(
          f'{split} would get nothing, as {shares[split]:.3g} of {whole} '
          f'is less than half an image: {advice}'
      )
  collection.splits = {split: sorted(part) for split, part in splits.items()}
  collection.source |= {
      'division': 'random' + ', per class' * collection.labels.by_class,
      'seed': seed,
      'shares': {split: shares[split] for split in wanted},
  }
  return collection


def _drawn(image: ImageFile, seed: int) -> bytes:
  name = image_paths.composed(image.file_name)
  return hashlib.sha256(f'{seed}:{name}'.encode()).digest()


def rank(image: ImageFile) -> bytes:
  """Returns the key by which records are ordered, a hash of the file name."""
  name = image_paths.composed(image.file_name)
  return hashlib.blake2b(name.encode(), digest_size=16).digest()


def some(names: Sequence[str]) -> str:
  """Returns names as text, of many only the first."""
  more = ', ...' * (len(names) > _NAMED)
  return ', '.join(names[:_NAMED]) + more


def listed(counts: Mapping[str, int]) -> str:
  """Returns counts as text, '.txt 3, hidden 1', without zeros."""
  some = ((key, count) for key, count in counts.items() if count)
  return ', '.join(f'{key} {count:,}' for key, count in some)


def summary(values: Sequence[int]) -> dict[str, int]:
  """Returns smallest, median and largest."""
  median = statistics.median_low(values)
  return {'min': min(values), 'median': median, 'max': max(values)}


def headline(
    name: str, sizes: Mapping[str, int], class_names: Sequence[str]
) -> str:
  """Returns the first line of reports: numbers of images, and the classes."""
  images = ', '.join(f'{split} {count:,}' for split, count in sizes.items())
  classes = counted(len(class_names), 'class', 'classes')
  return f'{name}: {images} images of {classes} ({some(class_names)})'


def sides_line(
    width: Mapping[str, int], height: Mapping[str, int], of: str = ''
) -> str:
  """Returns the line on widths and heights of reports, given summaries."""
  across, down = map(_spread, (width, height))
  return f'  width {across}, height {down} (smallest / median / largest{of})'


def spread(values: Sequence[int]) -> str:
  """Returns smallest, median and largest as text, '1 / 2 / 3'."""
  return _spread(summary(values))


def _spread(found):
  return ' / '.join(f'{value:,}' for value in found.values())
