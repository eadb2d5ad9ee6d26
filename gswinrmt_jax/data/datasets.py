"""The data sets by name: what they are, and their records."""

import dataclasses
import difflib
import math

from gswinrmt_jax.data import (
    decoded_cache,
    digits,
    imagenet,
    pictures,
    records,
    segmentation,
    sources,
)
from gswinrmt_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Info:
  """A data set's properties that need no record to be read.

  Attributes:
    name: As in the config's `data.name`.
    class_names: By label.
    mean: Per channel, of pixels / 255 of the train split; ImageNet's for
      data sets of the user's own.
    std: Standard deviation of the channels.
    image_size: Height and width as stored; zeros where they may differ.
    task: 'classification', or 'segmentation' if every pixel has a class.

  Raises:
    ValueError: If a class name is not a string, or images cannot be normalised
      by `mean` and `std`.
  """

  name: str
  class_names: tuple[str, ...]
  mean: tuple[float, float, float]
  std: tuple[float, float, float]
  image_size: tuple[int, int] = (32, 32)
  task: str = 'classification'

  def __post_init__(self):
    if not all(isinstance(name, str) for name in self.class_names):
      raise ValueError('a class name is not a string')
    for values in (self.mean, self.std):
      if len(values) != 3 or not all(map(math.isfinite, values)):
        raise ValueError(f'{values!r:.80} must be 3 finite numbers')
    if min(self.std) <= 0:
      raise ValueError(f'std {self.std} must be above 0')
    size = self.image_size
    if len(size) != 2 or not all(isinstance(side, int) for side in size):
      raise ValueError(f'image_size {size!r:.80} must be 2 whole numbers')


_CIFAR10 = 'airplane automobile bird cat deer dog frog horse ship truck'
_BUILT_IN = {
    'digits': Info('digits', digits.CLASSES, digits.MEAN, digits.STD),
    'digit_masks': Info(
        'digit_masks',
        (*digits.CLASSES, 'background'),
        digits.MEAN,
        digits.STD,
        task='segmentation',
    ),
    'cifar10': Info(
        'cifar10',
        # Alphabetical, which for CIFAR-10 is also the order of the labels.
        tuple(_CIFAR10.split()),
        # Of the original train split, as commonly quoted.
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
}
NAMES = tuple(_BUILT_IN)


def info(name: str, data_dir: str = '') -> Info:
  """Returns the properties of a data set.

  Args:
    name: One of `NAMES`, or of a data set prepared below `data_dir`.
    data_dir: As in `load`.

  Raises:
    UserError: If there is no such data set; names those that there are.
  """
  if name in _BUILT_IN:
    return _BUILT_IN[name]
  builder = _open(name, data_dir)
  features, task = builder.info.features, sources.task(builder)
  label = 'label' if task == 'classification' else 'segmentation_mask'
  return Info(
      name=name,
      class_names=tuple(features[label].names),
      mean=imagenet.MEAN,
      std=imagenet.STD,
      image_size=tuple(side or 0 for side in features['image'].shape[:2]),
      task=task,
  )


def load(
    name: str,
    split: str,
    data_dir: str = '',
    *,
    image_size: tuple[int, int] | None = None,
    crop: float | pictures.RandomCrop = 0.0,
    storage: str = 'memory',
    workers: int = 0,
) -> records.Records:
  """Returns a split of a prepared data set as images of one size.

  Args:
    name: As in `info`.
    split: For digits train, val or test; otherwise any of TFDS's slices of the
      data set's splits, such as 'train[:45000]'.
    data_dir: The TFDS data directory; empty for TFDS_DATA_DIR or, without
      that, TFDS's own default. Digits need none.
    image_size: Height and width that images are brought to; None keeps them as
      they are stored, all of one size.
    crop: Part of the resized image that is kept, as in `pictures.fit`; or what
      to draw of each image, each time, which needs the storage 'decode' and an
      image size.
    storage: 'memory', 'disk' or 'decode'; the first two decode once. The images
      are the same. Digits are in memory with 'disk', too.
    workers: Processes that decode, if storage is 'decode'; 0 for threads.

  Returns:
    The records, in the data set's own order.

  Raises:
    UserError: If the name or split is unknown, or the data are missing, half
      written, corrupt or for segmentation.
  """
  source = open_source(name, split, data_dir)
  decoded = records.Decoded(source, image_size, crop, workers)
  if storage == 'decode':
    return decoded
  if storage == 'disk' and isinstance(source, sources.TfdsSource):
    return decoded_cache.load(decoded)
  return records.to_memory(decoded)


def load_segmentation(
    name: str,
    split: str,
    data_dir: str = '',
    *,
    image_size: tuple[int, int] | None = None,
    crop: segmentation.Crop | None = None,
    workers: int = 0,
) -> segmentation.Decoded:
  """Returns a split of a data set whose pixels have classes.

  Args:
    name: As in `info`.
    split: As in `load`.
    data_dir: As in `load`.
    image_size: Longest long and longest short side, in pixels, that images are
      resized to, keeping their aspect ratio; None keeps their size.
    crop: What training draws of each image, each time; None for evaluation,
      which sees the images whole.
    workers: Processes that decode training batches; 0 for threads.

  Returns:
    The records, in the data set's own order.

  Raises:
    UserError: As `load`, or if the data set is for classification.
  """
  if name == 'digit_masks':
    source = sources.ArraySource(*digits.read_masks(split))
    return segmentation.Decoded(source, image_size, crop, workers)
  builder = _open(name, data_dir) if name not in NAMES else None
  if builder is None or sources.task(builder) != 'segmentation':
    raise UserError(
        f'{name} is a data set for classification: segmentation needs images '
        'with label images (gswinrmt prepare segmentation NAME)'
    )
  source = sources.SegmentationSource(builder, split)
  return segmentation.Decoded(source, image_size, crop, workers)


def open_source(name: str, split: str, data_dir: str = '') -> sources.Source:
  """Returns the records of a split as they are stored; arguments as of `load`.

  Raises:
    UserError: As `load`.
  """
  if name == 'digits':
    return sources.ArraySource(*digits.read(split))
  builder = _open(name, data_dir) if name != 'digit_masks' else None
  if builder is None or sources.task(builder) == 'segmentation':
    raise UserError(
        f'{name} is a data set for segmentation: classification needs one '
        'class for each image (gswinrmt prepare folder NAME)'
    )
  return sources.TfdsSource(builder, split)


def is_prepared(name: str, data_dir: str = '') -> bool:
  """Returns whether `load` will find the data; UserError if half written."""
  return (
      name in ('digits', 'digit_masks')
      or sources.open_newest(name, data_dir) is not None
  )


def ensure(name: str, data_dir: str = '') -> None:
  """Prepares CIFAR-10 if it is missing; other data sets must be there.

  Raises:
    UserError: If the data set is missing and cannot be prepared.
  """
  if is_prepared(name, data_dir):
    return
  if name != 'cifar10':
    raise _unknown(name, data_dir)
  from gswinrmt_jax.data.prepare import cifar10

  cifar10.prepare(data_dir)


def _open(name, data_dir):
  builder = sources.open_newest(name, data_dir)
  if builder is None:
    raise _unknown(name, data_dir)
  return builder


def _unknown(name: str, data_dir: str) -> UserError:
  root = sources.data_root(data_dir)
  if name in ('cifar10', 'imagenet', 'mini_imagenet'):
    images = '' if name == 'cifar10' else ' --images DIR'
    return UserError(
        f'{name} is not prepared in {root}; run '
        f'`{sources.command(name)}{images}`'
    )
  own = sources.names(data_dir)
  near = difflib.get_close_matches(name, [*NAMES, *own], n=1)
  hint = f'; did you mean {near[0]}?' if near else ''
  there = ', '.join(own) or 'none'
  return UserError(
      f'unknown data set {name!r}{hint} (built in: {", ".join(NAMES)}; in '
      f'{root}: {there})'
  )
