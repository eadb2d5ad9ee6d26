"""The records of a run and their batches, on the devices."""

from collections import Counter
from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import pathlib

import jax
import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import (
    checks,
    class_folders,
    datasets,
    detection,
    resizing,
    segmentation,
    token_labels,
)
from gswinrmt_jax.data import sources as sources_lib
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.distributed import mesh, processes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal

_SOME = 100  # most records of the test split that are read before training

Records = batches_lib.Records
Batch = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Data:
  """The records of a run.

  Attributes:
    config: The resolved config.
    info: The data set; its image size is that of the records.
    train: The training records, in any storage.
    val: The validation records.
    maps: Label maps of the training records, or None.
    devices: The device mesh.
    sources: The stored records of each split, test included.
  """

  config: ml_collections.ConfigDict
  info: datasets.Info
  train: Records
  val: Records
  maps: token_labels.TokenLabels | None
  devices: mesh.Devices
  sources: Mapping[str, sources_lib.Source]

  def train_batches(self, start: int, stop: int) -> Iterator[tuple[int, Batch]]:
    """Yields the steps from `start` + 1 to `stop`, with their batches.

    Prefetches one batch: it moves to the devices while they compute a step. The
    batches do not depend on where the records are stored.

    Args:
      start: Number of updates already made.
      stop: The run's last step.

    Raises:
      UserError: If a record cannot be decoded, or a worker is killed.
    """
    batches = batches_lib.train_batches(
        self.train,
        batch_size=self.config.batch_size,
        seed=self.config.seed,
        start_step=start,
        repeats=self.config.data.repeats,
        share=processes.share(),
    )
    with contextlib.closing(batches):
      ahead = []
      for step in range(start + 1, stop + 1):
        ahead.append((step, self._put(next(batches), self.train)))
        if len(ahead) > 1:
          yield ahead.pop(0)
      yield from ahead

  def eval_batches(self, records: Records, batch_size: int) -> Iterator[Batch]:
    """Yields batches on the devices with each record once; padding has mask 0.

    Args:
      records: Records of any split.
      batch_size: Records per batch; rounded up to a multiple of the devices.
    """
    batches = batches_lib.eval_batches(
        records,
        batch_size=self.devices.rounded_up(batch_size),
        share=processes.share(),
    )
    return (self._put(batch, records) for batch in batches)

  def _put(self, batch, source):
    if self.maps and source is self.train:
      batch = {**batch, **self.maps.gather(batch['row'])}
    return self.devices.put_batch(batch)


def open_data(config: ml_collections.ConfigDict, terminal: Terminal) -> Data:
  """Fetches, loads and checks the data of a resolved config.

  Raises:
    UserError: If the devices or the data do not suit the config.
  """
  devices = mesh.Devices()
  devices.check_batch_size(
      config.batch_size,
      config.accumulate_steps,
      pairs=recipes.task(config) == 'classification',
  )
  info = datasets.info(config.data.name, config.data.dir)
  if config.data.normalization:
    mean, std = datasets.normalization(config.data.normalization)
    info = dataclasses.replace(info, mean=mean, std=std)
  datasets.check_task(info.name, info.task, recipes.task(config))
  cifar10.prepare_if_missing(config.data.name, config.data.dir)
  for line in datasets.describe(config.data.name, config.data.dir):
    terminal.say(line)
  maps = None
  if config.token_label_weight:
    maps = token_labels.open_maps(
        config.data.label_maps,
        name=config.data.name,
        split=config.data.train_split,
        data_dir=config.data.dir,
    )
  sources = _open_splits(config)
  train, val = load_train(config), load_eval(config, config.data.val_split)
  # These have their labels in memory.
  sources |= {'train': train.source, 'val': val.source}
  _check_data(config, train, val, sources)
  for line in [*checks.overlaps(sources), *checks.too_small(train)]:
    terminal.say(line)
  info = dataclasses.replace(info, image_size=train.image_shape[:2])
  return Data(config, info, train, val, maps, devices, sources)


def with_own_splits(
    config: ml_collections.ConfigDict,
) -> ml_collections.ConfigDict:
  """Returns the config with the data set's own splits instead of 'auto'.

  The path of class folders becomes absolute.

  Raises:
    UserError: If there is no such data set, or folders do not suit the task.
  """
  config = ml_collections.ConfigDict(config.to_dict()).lock()
  data = config.data
  folder = datasets.folder_of(data.name, data.dir)
  if folder and recipes.task(config) != 'classification':
    raise UserError(
        f'config.data.name is a folder, {folder}: prepare the data with '
        f'`gswinrmt prepare {recipes.task(config)} NAME`, and give that name'
    )
  if folder:
    data.name = str(folder)
  for split, own in datasets.own_splits(data.name, data.dir).items():
    if data[f'{split}_split'] == 'auto':
      data[f'{split}_split'] = own
  return config


def check_apart(config: ml_collections.ConfigDict, run: pathlib.Path) -> None:
  """Raises UserError if the run folder would be among the class folders."""
  folder = datasets.folder_of(config.data.name, config.data.dir)
  parts = class_folders.split_folders(folder, Counter()) if folder else {}
  if any(
      run.resolve().is_relative_to((folder / part).resolve())
      for part in parts.values()
  ):
    raise UserError(
        f'the run folder {run} is in the folder of the data, where it would be '
        f'a class: choose one outside of {folder} with --workdir'
    )


def load_train(config: ml_collections.ConfigDict) -> Records:
  """Returns the training records of a config."""
  data, augment = config.data, config.augment
  match recipes.task(config):
    case 'detection':
      masks = config.detector.head in ('mask', 'cascade')
      training = detection.Training(
          flip=augment.flip,
          flip_vertical=augment.flip_vertical,
          multi_scale=augment.multi_scale,
          mask_crop=data.mask_crop if masks else 0,
          without_objects=data.without_objects,
      )
    case 'segmentation':
      training = segmentation.Crop(
          data.crop_size,
          scale=augment.resize,
          max_class_share=augment.max_class_share,
          flip=augment.flip,
          flip_vertical=augment.flip_vertical,
      )
    case _:
      training = None
      if data.train_crop == 'random_resized':
        training = resizing.RandomCrop(data.crop_scale, data.crop_ratio)
  return _load(config, data.train_split, training=training)


def load_eval(config: ml_collections.ConfigDict, split: str) -> Records:
  """Returns the records of a split, prepared as configured for evaluation."""
  return _load(config, split, eval_crop=config.data.eval_crop)


def _load(config, split, **how):
  data, task = config.data, recipes.task(config)
  size = data.fit_within
  if task == 'classification':
    size = (data.image_size, data.image_size)
  return datasets.load(
      data.name,
      split,
      data.dir,
      task=task,
      image_size=size if all(size) else None,
      storage=data.storage,
      workers=data.workers,
      **how,
  )


def _open_splits(config):
  """Opens every split, before any is decoded."""
  data, opened = config.data, {}
  for split in ('train', 'val', 'test'):
    if split != 'test' or data.test_split:
      with _named(split):
        opened[split] = datasets.open_source(
            data.name, data[f'{split}_split'], data.dir, recipes.task(config)
        )
  return opened


def _check_data(config, train, val, sources):
  """Refuses data that the run could not be trained, validated or tested on."""
  data, task = config.data, recipes.task(config)
  if task == 'classification':
    height, width, _ = train.image_shape
    if config.augment.crop_padding >= min(height, width):
      raise UserError(
          f'config.augment.crop_padding is {config.augment.crop_padding}: some '
          f'crops of images of {width} x {height} pixels would be black; it '
          f'must be below {min(height, width)}'
      )
    sizes = [(data.val_split, val.image_shape[1::-1])]
    test = sources.get('test')
    if test:
      # All others are decoded after the last epoch.
      some = 1 if data.image_size else _SOME
      rows = range(0, len(test), -(-len(test) // some))
      with _named('test'):
        found = [(data.test_split, test[row][0].size) for row in rows]
      if not data.image_size:
        sizes += found
    for split, (across, down) in sizes:
      if (across, down) != (width, height):
        raise UserError(
            f'{data.train_split} has images of {width} x {height} pixels, '
            f'{split} of {across} x {down}: set config.data.image_size'
        )
  for split, source in sources.items():
    taken = data[f'{split}_split']
    with _named(split):
      if task == 'detection' and not detection.has_objects(source.described()):
        raise UserError(f'no image of {taken!r} has an object')
      if task == 'segmentation' and not segmentation.has_labels(source):
        raise UserError(f'no pixel of {taken!r} has a class')


@contextlib.contextmanager
def _named(split):
  """Names a split's field in errors."""
  try:
    yield
  except UserError as error:
    raise UserError(f'config.data.{split}_split: {error}') from error
