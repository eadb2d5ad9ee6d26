"""A run whose folder is open: its data, model, checkpoints and log."""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import pathlib
import textwrap
from typing import Any

import jax
import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.checkpoints import checkpointer, raw_and_ema
from gswinrmt_jax.data import checks
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import interruption, UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.runs import dataset_record, metrics_log, plots, run_folder
from gswinrmt_jax.runs import summary as summary_lib
from gswinrmt_jax.runs.metrics_log import MetricsLog
from gswinrmt_jax.runs.scores import better
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import data as data_lib
from gswinrmt_jax.train import (
    fine_tuning,
    layerwise,
    profiler,
    train_state,
    trainer,
)
from gswinrmt_jax.train import schedule as schedule_lib
from gswinrmt_jax.train.train_state import TrainState
from gswinrmt_jax.weights import load as weights


@dataclasses.dataclass
class Run:
  """A run whose folder is locked.

  Attributes:
    folder: The run folder.
    config: The resolved config.
    data: Its records.
    schedule: The steps after which it logs, validates, saves and ends.
    trainer: Its initialisation and its update.
    evaluate: Evaluates raw weights and EMA on a split.
    checkpoints: Its checkpoints.
    init_from: Weights that a new run starts from, or None.
    images: What `data.json` says of its images.
    terminal: Where it prints.
  """

  folder: pathlib.Path
  config: ml_collections.ConfigDict
  data: data_lib.Data
  schedule: schedule_lib.Schedule
  trainer: trainer.Trainer
  evaluate: trainer.Evaluate
  checkpoints: checkpointer.Checkpointer
  init_from: weights.Weights | None
  images: dataset_record.ImageSpec
  terminal: Terminal

  def start_log(self, start: int) -> MetricsLog:
    """Announces the run, records its start and opens its log.

    Call it after restoring: if that fails, the folder has to keep the config
    and the record of data that belong to its checkpoints.

    Args:
      start: Number of updates already made.
    """
    self._announce(start)
    if processes.is_first():
      run_folder.write_config(self.folder, self.config)
      self.images.write(self.folder)
      run_folder.record_start(self.folder, self.config, start)
    return MetricsLog(
        self.folder,
        step=start,
        schedule=self.schedule,
        terminal=self.terminal,
        skip_nonfinite=self.config.nan_policy == 'skip',
        read_only=not processes.is_first(),
    )

  def init_state(self, batch: data_lib.Batch) -> TrainState:
    """Returns the state before the first step, on the devices.

    Plots the first batch, before and after augmentation, too.
    """
    state = self.trainer.init_state()
    if self.init_from is not None:
      state = fine_tuning.start(
          state, self.init_from, self.data.info, self.terminal.say
      )
      state = self.data.devices.replicate(state)
      self.init_from = None  # frees host memory
    name = 'augmented_batch.png'
    before, after = self.trainer.augmented(batch, plots.DRAWN)
    if processes.is_first():
      with self.terminal.warn_if_not_written(name):
        path = self.folder / name
        plots.write_augmented_batch(path, before, after, self.data.info)
    return state

  def validate(self, state: TrainState) -> dict[str, Any]:
    """Returns the validation scores of the raw weights and of their EMA."""
    saved = raw_and_ema.pack(state.variables, state.ema)
    return self.evaluate(saved, self.data.val)

  def save(
      self, state: TrainState, step: int, scores: Mapping[str, Any] | None
  ) -> None:
    """Saves a state; without scores, as a mid-epoch checkpoint."""
    score, which = None, raw_and_ema.RAW
    if scores:
      score, which = better(scores)
    self.checkpoints.save(
        state,
        accuracy=score,
        meta={
            'config': self.config.to_dict(),
            'step': step,
            'epoch': self.schedule.epoch_of(step),
            'weights': which,
        },
    )

  def _announce(self, start):
    if start:
      self.terminal.say(f'Resuming from the checkpoint of step {start:,}.')
    elif logged := metrics_log.read_metrics(self.folder):
      self.terminal.say(
          f'Starting again at step 0: the log reaches step '
          f'{logged[-1]["step"]:,}, but no checkpoint was complete.'
      )
    fields = self.config.model.to_dict()
    name = fields.pop('name')
    parameters = summary_lib.parameter_count(self.trainer.target)
    what = (
        f'{factory.describe(name, fields, parameters)}, on '
        f'{self.data.info.name}: {len(self.data.train):,} training and '
        f'{len(self.data.val):,} validation images.'
    )
    self.terminal.say(textwrap.fill(what, 80))
    if freeze := self.config.optimizer.freeze:
      trained = layerwise.trained_count(self.trainer.target.params, freeze)
      self.terminal.say(f'Of these parameters, {trained:,} are trained.')
    if (kept := self._kept_by_average()) > 0.1:
      self.terminal.say(
          f'The moving average will still hold {kept:.0%} of the initial '
          'weights at the end: lower config.ema_decay, or set '
          'config.ema_warmup=True.'
      )
    self.terminal.say(
        f'Steps {start:,} to {self.schedule.stop_step:,} of '
        f'{self.schedule.total_steps:,}, {len(jax.devices())} x '
        f'{jax.devices()[0].device_kind}. Run folder: {self.folder}'
    )

  def _kept_by_average(self):
    """Returns the weight of the first weights in the last average."""
    config = self.config
    if not config.ema_decay or config.ema_warmup:
      return 0.0
    decay = train_state.ema_decay_per_step(config.ema_decay, config.batch_size)
    return decay**self.schedule.total_steps


@contextlib.contextmanager
def open_run(
    config: ml_collections.ConfigDict, folder: pathlib.Path, terminal: Terminal
) -> Iterator[Run]:
  """Locks a run folder and builds what the run needs.

  Config fields and folder are checked before the data is fetched and decoded.
  Whatever depends on the number of images, such as the schedule, is checked
  afterwards. Config and data record are written once all checks have passed.
  With several processes, all of them open the run, or none.

  Raises:
    UserError: If the config, the data or the folder is unsuitable.
  """
  with contextlib.ExitStack() as stack:
    with processes.fail_together():
      config = data_lib.with_own_splits(recipes.resolve(config))
      data_lib.check_apart(config, folder)
      locked = True
      if processes.is_first():
        locked = stack.enter_context(run_folder.lock(folder))
      if not locked:
        terminal.say(
            f'{folder} is on a file system without locks: make sure that no '
            'other process trains there.'
        )
      run = _open(config, folder, terminal, locked)
      stack.callback(run.checkpoints.close)
    identity = [config.to_dict(), dataclasses.asdict(run.images)]
    processes.check_agree('configs or images', identity)
    try:
      yield run
    except (KeyboardInterrupt, SystemError) as error:
      # C code that is interrupted raises SystemError. A first signal raises
      # `Stopped`; KeyboardInterrupt itself is the second one.
      if type(interruption(error)) is KeyboardInterrupt:
        run.checkpoints.abandon()
      raise


def _open(config, folder, terminal, locked):
  """Returns the run of a resolved config; `locked` as `run_folder.lock`."""
  run_folder.check_folder(folder, config)
  checkpoints = checkpointer.Checkpointer(
      folder / 'checkpoints',
      read_only=not processes.is_first(),
      shared=not locked,
      warn=terminal.say,
  )
  if processes.is_first():
    checkpoints.clean()
  newest = checkpoints.newest_meta()
  if newest:
    saved = recipes.from_json(newest[1]['config'], str(newest[0]))
    run_folder.check_config(saved, config, newest[0])
  if not checkpoints.steps():
    metrics_log.check_new(folder)
  # A resumed run has already started from these weights.
  init_from = None
  if config.init_from and not checkpoints.steps():
    init_from = weights.load(config.init_from, warn=terminal.say)
    # Apart from the head, no array depends on the data, which is not read yet.
    target = factory.variable_shapes(recipes.make_model(config, num_classes=2))
    fine_tuning.check(
        target,
        init_from,
        config.optimizer.freeze,
        config.optimizer.freeze_statistics,
    )
  data = data_lib.open_data(config, terminal)
  model = recipes.make_model(
      config, len(data.info.class_names), data.train.image_shape
  )
  _check_batch(config, model, data.train.image_shape)
  if recipes.task(config) == 'detection':
    for line in checks.object_sizes(data.train, model.head.smallest_anchor):
      terminal.say(line)
  schedule = schedule_lib.from_config(config, len(data.train))
  profiler.parse(config.profile_steps, schedule.stop_step)  # a check
  run = Run(
      folder=folder,
      config=config,
      data=data,
      schedule=schedule,
      trainer=trainer.build(config, model, data, schedule),
      evaluate=trainer.evaluation(config, model, data, terminal),
      checkpoints=checkpoints,
      init_from=init_from,
      images=dataset_record.of_run(config, data.info, data.sources, data.maps),
      terminal=terminal,
  )
  if processes.is_first():
    run_folder.write_config(folder, config, replace=False)
    run.images.write(folder, replace=False)
  return run


def _check_batch(config, model, image_shape):
  """Refuses batches in which a BatchNorm would see one value per channel."""
  if config.batch_size > config.accumulate_steps:
    return
  optimizer = config.optimizer
  fixed = optimizer.freeze == 'backbone' or optimizer.freeze_statistics
  small = not fixed and max(image_shape[:2]) <= model.arch.stride
  if config.segmenter.head == 'uper' or (
      small and factory.variable_shapes(model).get('batch_stats')
  ):
    parts = ' / config.accumulate_steps' * (config.accumulate_steps > 1)
    raise UserError(
        f'config.batch_size{parts} is 1: it must be at least 2, since the '
        'model has a BatchNorm that would see a single value per channel'
    )
