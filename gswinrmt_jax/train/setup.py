"""Everything that a run needs, built from its config."""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import functools
from typing import Any

import jax
import ml_collections
import numpy as np

from gswinrmt_jax import recipes
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, pictures, segmentation, token_labels
from gswinrmt_jax.data.prepare import cifar10
from gswinrmt_jax.distributed import compilation, mesh, processes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import losses, optimizer, profiler, resident
from gswinrmt_jax.train import schedule as schedule_lib
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

# Random streams of the seed: parameter initialisation, and training.
_INIT, _TRAIN = 0, 1

Records = batches_lib.Records | resident.Resident
Batch = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Setup:
  """The data and the compiled functions of a run.

  Attributes:
    config: The resolved config.
    info: The data set; its image size is that of the records.
    train_data: The training records, in any storage.
    val_data: The validation records.
    maps: Label maps of the training records, or None.
    schedule: The steps after which the run logs, validates, saves and ends.
    profiled: The steps to trace.
    devices: The device mesh.
    augmentation: `(key, batch, step) -> (image, targets)`, as in the train
      step.
    key: PRNG key for everything random in training.
    create: Traced function that returns the state before the first step.
    target: Shapes of that state, with shardings.
    train_step: `(state, batch, key) -> (state, metrics)`, jitted; donates the
      state.
    eval_step: `(variables, batch) -> sums`, jitted.
  """

  config: ml_collections.ConfigDict
  info: datasets.Info
  train_data: Records
  val_data: Records
  maps: token_labels.TokenLabels | None
  schedule: schedule_lib.Schedule
  profiled: range
  devices: mesh.Devices
  augmentation: losses.Augmentation
  key: jax.Array
  create: jax.stages.Traced
  target: state_lib.TrainState
  train_step: step_lib.TrainStep
  eval_step: evaluator.EvalStep

  def init_state(self) -> state_lib.TrainState:
    """Returns the state before the first step, on the devices."""
    return compilation.compiled(self.create)()

  def train_batches(self, start: int) -> Iterator[tuple[int, Batch]]:
    """Yields each step and its batch, on the devices, until the run ends.

    Prefetches one batch: it moves to the devices while they compute a step. The
    batches do not depend on where the records are stored.

    Args:
      start: Number of updates already made.

    Raises:
      UserError: If a record cannot be decoded, or a worker is killed.
    """
    batches = batches_lib.train_batches(
        self.train_data,
        batch_size=self.config.batch_size,
        seed=self.config.seed,
        start_step=start,
        repeats=self.config.data.repeats,
        share=processes.share(),
    )
    with contextlib.closing(batches):
      ahead = []
      for step in range(start + 1, self.schedule.stop_step + 1):
        try:
          ahead.append((step, self._put(next(batches), self.train_data)))
        except UserError:
          # A signal may also have killed the workers. The prefetched batch is
          # still trained on; then the run ends with a checkpoint.
          yield from ahead
          raise
        if len(ahead) > 1:
          yield ahead.pop(0)
      yield from ahead

  def validate(self, state: state_lib.TrainState) -> dict[str, Any]:
    """Returns the validation scores of the raw weights and of their EMA."""
    weights = raw_and_ema.joined(state.variables, state.ema)
    return self.evaluate(weights, self.val_data)

  def evaluate(self, saved: Mapping[str, Any], data: Records) -> dict[str, Any]:
    """Returns the scores of raw weights and, as `ema_NAME`, of their EMA.

    Args:
      saved: Raw weights and EMA, as a checkpoint stores them.
      data: The records to evaluate on.
    """
    batches = batches_lib.eval_batches(
        data,
        batch_size=self.devices.rounded_up(self.config.eval_batch_size),
        share=processes.share(),
    )
    scores = evaluator.evaluate(
        self.eval_step,
        raw_and_ema.by_name(saved),
        batches,
        lambda batch: self._put(batch, data),
        recipes.task(self.config),
    )
    return raw_and_ema.merged(scores)

  def augmented(
      self, batch: Batch, count: int
  ) -> tuple[Batch, tuple[np.ndarray, np.ndarray]]:
    """Returns rows of the batch of step 1, before and after augmentation.

    Every process has to call this.

    Returns:
      `batch, (image, targets)`, `count` rows of each, on the host: as loaded,
      and as the first train step sees them.
    """

    def augment(key, batch):
      image, targets = self.augmentation(key, batch, 0)
      if self.maps:
        targets, _ = targets  # of images, not of tokens
      both = dict(batch), (image, targets)
      return jax.tree.map(lambda rows: rows[:count], both)

    arguments = step_lib.augment_key(self.key, 0), batch
    traced = jax.jit(
        augment,
        out_shardings=self.devices.replicated,
        compiler_options=compilation.quick_compilation(),
    ).trace(*arguments)
    return jax.device_get(compilation.compiled(traced)(*arguments))

  def _put(self, batch, source):
    if self.maps and source is self.train_data:
      batch = {**batch, **self.maps.gather(batch['row'])}
    return resident.gather(self.devices.put_batch(batch), source)


def build(
    config: ml_collections.ConfigDict, terminal: Terminal | None = None
) -> Setup:
  """Builds what a run needs; fetches and decodes its data.

  Args:
    config: A resolved config.
    terminal: Where the compilation of the eval step is shown.

  Raises:
    UserError: If the config or the data is unsuitable.
  """
  if config.num_epochs:  # Before the data is decoded, if possible.
    schedule_lib.check_stop(config, config.num_epochs)
  devices = mesh.Devices(config.mesh.data)
  devices.check_batch_size(config.batch_size, config.accumulate_steps)
  info = datasets.info(config.data.name, config.data.dir)
  datasets.check_task(info.name, info.task, recipes.task(config))
  cifar10.prepare_if_missing(config.data.name, config.data.dir)
  for line in datasets.describe(config.data.name, config.data.dir):
    (terminal or processes.terminal()).say(line)
  maps = None
  if config.token_label_weight:
    maps = token_labels.open_maps(
        config.data.label_maps,
        name=config.data.name,
        split=config.data.train_split,
        data_dir=config.data.dir,
    )
  train_data, val_data = (
      resident.place(records, config.data.storage, devices.replicate)
      for records in (
          load_train(config),
          load_eval(config, config.data.val_split),
      )
  )
  _check_data(config, train_data, val_data)
  image_shape = train_data.image_shape
  info = dataclasses.replace(info, image_size=image_shape[:2])

  model = recipes.make_model(config, len(info.class_names), image_shape)
  schedule = schedule_lib.from_config(config, len(train_data))
  learning_rate = schedule_lib.learning_rate(config, schedule)
  tx = optimizer.from_config(config, learning_rate)
  stride = model.arch.stride if config.token_label_weight else 1
  augmentation, loss = losses.augmentation_and_loss(
      config, info, schedule, stride=stride
  )
  key = jax.random.key(config.seed)
  # Not `devices.replicate`, which passes arrays of several processes through
  # NumPy: keys cannot be converted.
  train_key = jax.jit(
      lambda: jax.random.fold_in(key, _TRAIN), out_shardings=devices.replicated
  )()

  def create():
    ema = config.ema_decay > 0
    init_key = jax.random.fold_in(key, _INIT)
    return state_lib.create(model, tx, init_key, image_shape, ema=ema)

  full = {'out_shardings': devices.replicated}
  quick = {**full, 'compiler_options': compilation.quick_compilation()}
  as_configured = quick if config.compile_effort == 'quick' else full
  created = jax.jit(create, **quick).trace()
  train_step = step_lib.make_train_step(
      model,
      tx,
      augmentation,
      loss,
      accuracy_name='pixel_accuracy' if config.segmenter.head else 'accuracy',
      learning_rate=functools.partial(
          optimizer.last_learning_rate, learning_rate
      ),
      ema_decay=state_lib.ema_decay_per_step(
          config.ema_decay, config.batch_size
      ),
      skip_nonfinite=config.nan_policy == 'skip',
      accumulate_steps=config.accumulate_steps,
  )
  eval_step = evaluator.make_eval_step(
      model, info.mean, info.std, recipes.task(config)
  )
  return Setup(
      config=config,
      info=info,
      train_data=train_data,
      val_data=val_data,
      maps=maps,
      schedule=schedule,
      profiled=profiler.parse(config.profile_steps, schedule.stop_step),
      devices=devices,
      augmentation=augmentation,
      key=train_key,
      create=created,
      target=devices.target(created.out_info),
      train_step=jax.jit(train_step, donate_argnums=0, **as_configured),
      eval_step=compilation.announced(
          jax.jit(eval_step, **as_configured),
          'the evaluation',
          terminal or processes.terminal(),
      ),
  )


def with_own_splits(
    config: ml_collections.ConfigDict,
) -> ml_collections.ConfigDict:
  """Returns the config with the splits of its data set instead of CIFAR-10's.

  The latter are a recipe's default; of other data, 45,000 images would be a
  part, and a split of their own for validation would not be used. The path of
  class folders becomes absolute, and they need no test split.

  Raises:
    UserError: If there is no such data set.
  """
  config = ml_collections.ConfigDict(config).lock()
  data = config.data
  folder = datasets.folder_of(data.name, data.dir)
  if folder:
    data.name = str(folder)
  default = datasets.own_splits('cifar10')
  of_cifar = (data.train_split, data.val_split) == (
      default['train'],
      default['val'],
  )
  if of_cifar or folder:
    own = datasets.own_splits(data.name, data.dir)
    if of_cifar:
      data.update(train_split=own['train'], val_split=own['val'])
    if data.test_split == default['test']:
      data.test_split = own['test']
  return config


def load_train(config: ml_collections.ConfigDict) -> batches_lib.Records:
  """Returns the training records of a config."""
  data = config.data
  if config.segmenter.head:
    crop = segmentation.Crop(
        data.crop_size,
        scale=config.augment.resize,
        max_class_share=config.augment.max_class_share,
        flip=config.augment.flip,
    )
    return _load_segmentation(config, data.train_split, crop)
  if data.train_crop == 'random_resized':
    crop = pictures.RandomCrop(data.crop_scale, data.crop_ratio)
  else:
    crop = 0.0
  return _load(config, data.train_split, crop)


def load_eval(
    config: ml_collections.ConfigDict, split: str
) -> batches_lib.Records:
  """Returns the records of a split, prepared as configured for evaluation."""
  if config.segmenter.head:
    return _load_segmentation(config, split, None)
  return _load(config, split, config.data.eval_crop)


def _load_segmentation(config, split, crop):
  data = config.data
  return datasets.load_segmentation(
      data.name,
      split,
      data.dir,
      image_size=data.fit_within if all(data.fit_within) else None,
      crop=crop,
      workers=data.workers,
  )


def _load(config, split, crop):
  data = config.data
  # 'device' and 'auto' load into host memory; `resident` copies from there.
  in_memory = data.storage in ('device', 'auto')
  return datasets.load(
      data.name,
      split,
      data.dir,
      image_size=(data.image_size,) * 2 if data.image_size else None,
      storage='memory' if in_memory else data.storage,
      crop=crop,
      workers=data.workers,
  )


def _check_data(config, train, val):
  """Refuses data that the run could not be trained, validated or tested on."""
  data = config.data
  if config.segmenter.head:
    _check_labels(config, train, val)
    return
  if train.image_shape != val.image_shape:
    sizes = [
        f'{records.image_shape[1]} x {records.image_shape[0]}'
        for records in (train, val)
    ]
    raise UserError(
        f'{data.train_split} has images of {sizes[0]} pixels, '
        f'{data.val_split} of {sizes[1]}: set config.data.image_size'
    )
  if data.test_split:
    with _named('test_split'):  # Opens the split; decodes no image.
      datasets.open_source(data.name, data.test_split, data.dir)


def _check_labels(config, train, val):
  """Refuses splits for segmentation in which no pixel has a class.

  Training crops and whole images for evaluation may differ in size.
  """
  data, test = config.data, None
  if data.test_split:
    with _named('test_split'):
      # As crops, since whole images would all be read for their sizes.
      crop = segmentation.Crop(data.crop_size)
      test = _load_segmentation(config, data.test_split, crop)
  splits = {'train_split': train, 'val_split': val, 'test_split': test}
  for name, records in splits.items():
    with _named(name):
      if records and not records.has_labels():
        raise UserError(f'no pixel of {data[name]!r} has a class')


@contextlib.contextmanager
def _named(split):
  """Adds the name of a split's field to errors."""
  try:
    yield
  except UserError as error:
    raise UserError(f'config.data.{split}: {error}') from error
