"""Looks up data sets by name or folder: their properties and records."""

from collections.abc import Callable, Mapping
import dataclasses
import math
import os
import pathlib
import shlex
from typing import Any, NamedTuple

from gswinrmt_jax.data import (
    cifar10,
    class_folders,
    decoded_cache,
    detection,
    digits,
    imagenet,
    prepared,
    records,
    resizing,
    segmentation,
    sources,
)
from gswinrmt_jax.errors import did_you_mean, UserError

Training = resizing.RandomCrop | segmentation.Crop | detection.Training


@dataclasses.dataclass(frozen=True)
class Info:
  """Properties of a data set, known without reading a record.

  Attributes:
    name: Name of the data set; of class folders, the folder's own name.
    class_names: Names of the classes, in the order of the labels.
    mean: Per-channel mean of pixels / 255 in the train split; ImageNet's for
      data sets that are not built in.
    std: Per-channel standard deviation, likewise.
    image_size: Height and width in pixels, of the stored images (0 where they
      may differ) or, in a run, of those that the model sees.
    task: 'classification', 'segmentation' if every pixel has a class, or
      'detection' if images have objects with a box each.

  Raises:
    ValueError: If a class name is not a string, or images cannot be normalised
      by `mean` and `std`.
  """

  name: str
  class_names: tuple[str, ...]
  mean: tuple[float, float, float]
  std: tuple[float, float, float]
  image_size: tuple[int, int]
  task: str = 'classification'

  def __post_init__(self):
    if not all(isinstance(name, str) for name in self.class_names):
      raise ValueError('a class name is not a string')
    for values in (self.mean, self.std):
      if len(values) != 3 or not all(map(math.isfinite, values)):
        raise ValueError(f'{values!r:.80} must be 3 finite numbers')
    if not 0 <= min(self.mean) <= max(self.mean) <= 1:
      raise ValueError(f'mean {self.mean} must be of pixels / 255, from 0 to 1')
    if not 0 < min(self.std) <= max(self.std) <= 1:
      raise ValueError(
          f'std {self.std} must be of pixels / 255, above 0 and at most 1'
      )
    size = self.image_size
    if len(size) != 2 or not all(isinstance(side, int) for side in size):
      raise ValueError(f'image_size {size!r:.80} must be 2 whole numbers')


class _Task(NamedTuple):
  """What a task needs.

  Attributes:
    source: Opens a split of a data set in TFDS's format; its `feature` is the
      feature that has the labels.
    records: Makes records of a source.
    needs: What a data set for it has, for messages.
    least: Smallest number of classes.
  """

  source: Callable[[Any, str], sources.Source]
  records: Callable[..., records.OnTheFly]
  needs: str
  least: int = 2


# In TFDS, images of a set for segmentation may have a class, too.
_TASKS = {
    'detection': _Task(
        detection.ObjectSource,
        detection.AnnotatedImages,
        'images with boxes (gswinrmt prepare detection NAME)',
        least=1,
    ),
    'segmentation': _Task(
        segmentation.SegmentationSource,
        segmentation.SegmentedImages,
        'images with label images (gswinrmt prepare segmentation NAME)',
    ),
    'classification': _Task(
        sources.TfdsSource,
        records.Images,
        'one class for each image (a folder with a folder for each class)',
    ),
}


class _BuiltIn(NamedTuple):
  """A data set whose properties are known here.

  Attributes:
    info: Its properties.
    splits: Its splits or slices for 'train', 'val' and 'test'.
    open: Opens a split, in a data directory as in `info`; None if the data set
      has to be prepared.
  """

  info: Info
  splits: Mapping[str, str]
  open: Callable[[str, str], sources.Source] | None


def _scenes(split, _):
  images, found = zip(*digits.read_scenes(split), strict=True)
  return detection.Scenes(images, [*map(detection.from_masks, found)])


_DIGITS = {split: split for split in digits.SPLITS}
_BUILT_IN = {
    'digits': _BuiltIn(
        Info('digits', digits.CLASSES, digits.MEAN, digits.STD, (32, 32)),
        _DIGITS,
        lambda split, _: records.Arrays(*digits.read(split)),
    ),
    'digit_masks': _BuiltIn(
        Info(
            'digit_masks',
            (*digits.CLASSES, 'background'),
            digits.MEAN,
            digits.STD,
            (32, 32),
            task='segmentation',
        ),
        _DIGITS,
        lambda split, _: records.Arrays(*digits.read_masks(split)),
    ),
    'digit_boxes': _BuiltIn(
        Info(
            'digit_boxes',
            digits.CLASSES,
            digits.MEAN,
            digits.STD,
            (0, 0),
            task='detection',
        ),
        _DIGITS,
        _scenes,
    ),
    'cifar10': _BuiltIn(
        Info('cifar10', cifar10.CLASSES, cifar10.MEAN, cifar10.STD, (32, 32)),
        cifar10.SPLITS,
        None,
    ),
}
NAMES = tuple(_BUILT_IN)


def info(name: str, data_dir: str = '') -> Info:
  """Returns the properties of a data set.

  Args:
    name: One of `NAMES`, a data set prepared in `data_dir`, or class folders as
      in `class_folders.find`.
    data_dir: TFDS data directory; empty for TFDS_DATA_DIR or, without that,
      TFDS's default.

  Raises:
    UserError: If there is no such data set; the message lists all names.
  """
  if name in _BUILT_IN:
    return _BUILT_IN[name].info
  opened, task = _open(name, data_dir)
  if isinstance(opened, pathlib.Path):
    name, sides = opened.name, (0, 0)
    class_names = class_folders.read(opened, train=False).class_names
  else:
    features = opened.info.features
    sides = features['image'].shape[:2]
    class_names = features[_TASKS[task].source.feature].names
  return Info(
      name,
      tuple(class_names),
      imagenet.MEAN,
      imagenet.STD,
      image_size=tuple(side or 0 for side in sides),
      task=task,
  )


def normalization(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Returns mean and standard deviation of 'imagenet' or a built-in set."""
  if name == 'imagenet':
    return imagenet.MEAN, imagenet.STD
  found = _BUILT_IN[name].info
  return found.mean, found.std


def normalization_of(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> str:
  """Returns the name for which `normalization` has these values, or ''."""
  known = ('imagenet', *NAMES)
  return next((n for n in known if normalization(n) == (mean, std)), '')


def folder_of(name: str, data_dir: str = '') -> pathlib.Path | None:
  """Returns the class folders that a name stands for, None for other data."""
  if name in _BUILT_IN or prepared.open_newest(name, data_dir):
    return None
  return _folder(name)


def own_splits(
    name: str, data_dir: str = '', *, train: bool = True
) -> dict[str, str]:
  """Returns the splits or slices of a data set for 'train', 'val' and 'test'.

  Without val, it is the last tenth of train; without test, ''.

  Args:
    name: As in `info`.
    data_dir: As in `info`.
    train: Whether class folders must be enough for training. Otherwise, each
      split that they lack is ''.

  Raises:
    UserError: As in `info`.
  """
  if name in _BUILT_IN:
    return dict(_BUILT_IN[name].splits)
  opened, _ = _open(name, data_dir)
  if isinstance(opened, pathlib.Path):
    there = class_folders.read(opened, train=train).splits
    return {s: s if s in there else '' for s in ('train', 'val', 'test')}
  there = opened.info.splits
  train, val = 'train', 'val' if 'val' in there else 'validation'
  if val not in there:
    train, val = 'train[:90%]', 'train[90%:]'
  return {'train': train, 'val': val, 'test': 'test' * ('test' in there)}


def describe(name: str, data_dir: str = '') -> list[str]:
  """Returns lines for the user on class folders, or on a folder passed over.

  Raises:
    UserError: As in `class_folders.read`.
  """
  if folder := folder_of(name, data_dir):
    found = class_folders.read(folder, train=False)
    return [*class_folders.report(folder.name, found)]
  if _folder(name):
    return [
        f'{name!r} is taken as the data set of that name; for the folder, give '
        f'./{name}'
    ]
  return []


def load(
    name: str,
    split: str,
    data_dir: str = '',
    *,
    task: str = 'classification',
    image_size: tuple[int, int] | None = None,
    training: Training | None = None,
    eval_crop: float = 0.0,
    storage: str = 'memory',
    workers: int = 0,
) -> records.Arrays | records.OnTheFly:
  """Returns a split of a data set, in its own order.

  Args:
    name: As in `info`.
    split: Split or slice of TFDS, such as 'train[:45000]'; for digits only
      train, val or test.
    data_dir: As in `info`.
    task: As in `Info`.
    image_size: Height and width in pixels to resize images to. For segmentation
      and detection, the maximum long side and the maximum short side: images
      are resized to fit, keeping their aspect ratio. None keeps the stored
      size, which for classification must be the same for all.
    training: Random crops and other preparation for training, of the task's
      type. None prepares records as for evaluation; segmenters and detectors
      then have whole images.
    eval_crop: For classification without random crops, the `crop` of
      `resizing.center_crop`.
    storage: 'memory' or 'disk', which decode once, or 'decode', which random
      crops need and other tasks always do. The images are the same. Arrays,
      as of the digits, are kept in memory by 'disk', too.
    workers: Decoding processes if storage is 'decode'; 0 for threads.

  Raises:
    UserError: If the name or split is unknown, or the data are missing, half
      written, corrupt, for another task or without masks; for detection also if
      pycocotools is not installed.
    ValueError: If random crops are not decoded each time.
  """
  if training and task == 'classification' and storage != 'decode':
    raise ValueError(f"storage is {storage!r}: random crops need 'decode'")
  if task == 'detection':
    # For the scores; a run should not end at its first validation.
    detection.pycocotools('cocoeval')
  source = open_source(name, split, data_dir, task)
  num_classes = len(info(name, data_dir).class_names)
  crop = {'eval_crop': eval_crop} if task == 'classification' else {}
  images = _TASKS[task].records(
      source, image_size, training, workers, num_classes, **crop
  )
  if storage == 'decode' or task != 'classification':
    return images
  if storage == 'disk' and not isinstance(source, records.Arrays):
    return decoded_cache.load(images)
  return records.to_memory(images)


def open_source(
    name: str, split: str, data_dir: str = '', task: str = 'classification'
) -> sources.Source:
  """Returns the stored records of a split; arguments as in `load`.

  Raises:
    UserError: As in `load`, or if the data set is for another task.
  """
  if name in _BUILT_IN:  # Its task is known before it is prepared.
    known = _BUILT_IN[name]
    check_task(name, known.info.task, task)
    if known.open:
      return known.open(split, data_dir)
  opened, found = _open(name, data_dir)
  check_task(name, found, task)
  if isinstance(opened, pathlib.Path):
    found = class_folders.read(opened, train=False)
    return class_folders.FolderSource(found, split)
  return _TASKS[task].source(opened, split)


def check_task(name: str, found: str, wanted: str) -> None:
  """Raises UserError if the task of a data set is not the wanted one."""
  if found != wanted:
    raise UserError(
        f'{name} is a data set for {found}: {wanted} needs '
        f'{_TASKS[wanted].needs}'
    )


def _folder(name):
  # Unlike `Path.expanduser`, this leaves the name of an unknown user.
  folder = pathlib.Path(os.path.expanduser(name)).absolute()
  return folder if name and folder.is_dir() else None


def _open(name, data_dir):
  """Returns a data set's TFDS builder or the path of class folders; its task.

  Raises:
    UserError: As in `info`, or if neither images nor pixels of a data set in
      TFDS's format are labelled with two or more classes, or objects with one.
  """
  if builder := prepared.open_newest(name, data_dir):
    import tensorflow_datasets as tfds

    features = dict(builder.info.features.items())
    classes = {
        task: getattr(features.get(how.source.feature), 'num_classes', None)
        for task, how in _TASKS.items()
    }
    if isinstance(features.get('label'), tfds.features.Sequence):
      classes['classification'] = None  # several labels of an image
    task = next((t for t, count in classes.items() if count), 'classification')
    if 'image' not in features or (classes[task] or 0) < _TASKS[task].least:
      raise UserError(
          f'{builder.data_path} holds {", ".join(sorted(features))} and '
          f'{classes[task] or 0} classes: classification needs image and a '
          'label of two or more classes, segmentation image and '
          f'{segmentation.MASK}, detection image and {detection.LABELS}'
      )
    return builder, task
  if name not in _BUILT_IN and (folder := _folder(name)):
    return folder, 'classification'
  root = prepared.data_root(data_dir)
  if name in prepared.BY_NAME:
    images = ' --images DIR' * (name != 'cifar10')
    raise UserError(
        f'{name} is not prepared in {root}; run `gswinrmt prepare {name}'
        f'{images} --dir {shlex.quote(str(root))}`'
    )
  own = prepared.names(data_dir)
  if pathlib.Path(name).name != name:
    said = 'is no folder' if pathlib.Path(name).exists() else 'does not exist'
    raise UserError(
        f'config.data.name: {name} {said}; give a folder with a folder of '
        'images for each class, or the name of a data set'
    )
  raise UserError(
      f'unknown data set {name!r}{did_you_mean(name, [*NAMES, *own])}; built '
      f'in: {", ".join(NAMES)}; in {root}: {", ".join(own) or "none"}; or give '
      'the path to a folder with a folder for each class, or prepare the data '
      '(`gswinrmt prepare --help`)'
  )
