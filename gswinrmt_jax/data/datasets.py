"""Looks up data sets by name: their properties and records."""

import dataclasses
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
from gswinrmt_jax.errors import did_you_mean, UserError


@dataclasses.dataclass(frozen=True)
class Info:
  """Properties of a data set, known without reading a record.

  Attributes:
    name: Name as in `config.data.name`.
    class_names: Names of the classes, in the order of the labels.
    mean: Per-channel mean of pixels / 255 in the train split; ImageNet's for
      data sets that are not built in.
    std: Per-channel standard deviation, likewise.
    image_size: Height and width in pixels, of the stored images (0 where they
      may differ) or, in a run, of those that the model sees.
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
        # Commonly quoted statistics of the original train split.
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
}
NAMES = tuple(_BUILT_IN)
_SHIPPED = {'digits': digits.read, 'digit_masks': digits.read_masks}
_NEEDS = {
    'classification': 'one class for each image (gswinrmt prepare folder NAME)',
    'segmentation': (
        'images with label images (gswinrmt prepare segmentation NAME)'
    ),
}


def info(name: str, data_dir: str = '') -> Info:
  """Returns the properties of a data set.

  Args:
    name: One of `NAMES`, or a data set prepared in `data_dir`.
    data_dir: TFDS data directory; empty for TFDS_DATA_DIR or, without that,
      TFDS's default.

  Raises:
    UserError: If there is no such data set; the message lists all names.
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
  """Returns a split of a data set, in its own order, as images of one size.

  Args:
    name: As in `info`.
    split: Split or TFDS slice, such as 'train[:45000]'; for digits only train,
      val or test.
    data_dir: As in `info`.
    image_size: Height and width in pixels to resize images to; None keeps the
      stored size, which must be the same for all.
    crop: Side of the centre crop / side of the resized image, as in
      `pictures.fit`; or a random crop, which needs the storage 'decode' and an
      image size.
    storage: 'memory' or 'disk', which decode once, or 'decode'. The images are
      the same. 'disk' keeps digits in memory.
    workers: Decoding processes if storage is 'decode'; 0 for threads.

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
  """Returns a split of a segmentation data set, in its own order.

  Args:
    name: As in `info`.
    split: As in `load`.
    data_dir: As in `info`.
    image_size: Maximum long side and maximum short side in pixels. Images are
      resized to fit, keeping their aspect ratio; None keeps their size.
    crop: Random crop for training; None for evaluation on whole images.
    workers: Processes that decode training batches; 0 for threads.

  Raises:
    UserError: As in `load`, but if the data are for classification.
  """
  source = open_source(name, split, data_dir, 'segmentation')
  return segmentation.Decoded(source, image_size, crop, workers)


def open_source(
    name: str, split: str, data_dir: str = '', task: str = 'classification'
) -> sources.Source:
  """Returns the stored records of a split; arguments as in `load`.

  Raises:
    UserError: As in `load`, or if the data set is for another task.
  """
  if name in _BUILT_IN:  # Its task is known before it is prepared.
    check_task(name, _BUILT_IN[name].task, task)
  if name in _SHIPPED:
    return sources.ArraySource(*_SHIPPED[name](split))
  builder = _open(name, data_dir)
  check_task(name, sources.task(builder), task)
  if task == 'segmentation':
    return sources.SegmentationSource(builder, split)
  return sources.TfdsSource(builder, split)


def check_task(name: str, found: str, wanted: str) -> None:
  """Raises UserError if the task of a data set is not the wanted one."""
  if found != wanted:
    raise UserError(
        f'{name} is a data set for {found}: {wanted} needs {_NEEDS[wanted]}'
    )


def ensure(name: str, data_dir: str = '') -> None:
  """Prepares CIFAR-10 if it is missing; other data sets must exist.

  Raises:
    UserError: If the data set is missing and cannot be prepared.
  """
  if name == 'cifar10' and sources.open_newest(name, data_dir) is None:
    from gswinrmt_jax.data.prepare import cifar10

    cifar10.prepare(data_dir)
  else:
    info(name, data_dir)


def _open(name, data_dir):
  if builder := sources.open_newest(name, data_dir):
    return builder
  root = sources.data_root(data_dir)
  if name in sources.PREPARED_BY_NAME:
    command = sources.prepare_command(name, root)
    raise UserError(f'{name} is not prepared in {root}; run `{command}`')
  own = sources.names(data_dir)
  raise UserError(
      f'unknown data set {name!r}{did_you_mean(name, [*NAMES, *own])}; built '
      f'in: {", ".join(NAMES)}; in {root}: {", ".join(own) or "none"}'
  )
