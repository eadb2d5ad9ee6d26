"""Everything that a run needs, built from its config."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

import jax
import ml_collections
import numpy as np

from gswinrmt_jax import recipes
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, label_maps
from gswinrmt_jax.distributed import compilation, mesh, processes
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import data as data_lib
from gswinrmt_jax.train import losses, optimizer, profiler, resident
from gswinrmt_jax.train import schedule as schedule_lib
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib
from gswinrmt_jax.train.data import Batch, Records

# Random streams of the seed: parameter initialisation, and training.
_INIT, _TRAIN = 0, 1


@dataclasses.dataclass(frozen=True)
class Setup(data_lib.Batches):
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
  maps: label_maps.LabelMaps | None
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
  datasets.ensure(config.data.name, config.data.dir)
  maps = None
  if config.token_label_weight:
    maps = label_maps.open_maps(
        config.data.label_maps,
        name=config.data.name,
        split=config.data.train_split,
        data_dir=config.data.dir,
    )
  train_data, val_data = (
      resident.place(records, config.data.storage, devices.replicate)
      for records in (
          data_lib.load_train(config),
          data_lib.load_eval(config, config.data.val_split),
      )
  )
  data_lib._check_data(config, train_data, val_data)
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
