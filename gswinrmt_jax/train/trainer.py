"""The functions of a training run: initialisation, update, augmentation."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import ml_collections
import numpy as np

from gswinrmt_jax import recipes
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.distributed import compilation
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import augmentation as augmentation_lib
from gswinrmt_jax.train import learning_rate, losses, optimizer
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib
from gswinrmt_jax.train.data import Batch, Data, Records
from gswinrmt_jax.train.schedule import Schedule

# Random streams of the seed: parameter initialisation, and training.
_INIT, _TRAIN = 0, 1

# (raw weights and EMA as a checkpoint stores them, records)
#   -> scores; those of the EMA are called `ema_NAME`
Evaluate = Callable[[Mapping[str, Any], Records], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Trainer:
  """The functions of a run that do not depend on its progress.

  Attributes:
    key: PRNG key for everything random in training.
    create: Traced function that returns the state before the first step.
    target: Shapes of that state, with shardings.
    train_step: `(state, batch, key) -> (state, metrics)`, jitted; donates the
      state.
    augmentation: `(key, batch, step) -> (image, targets)`, as in the train
      step.
  """

  key: jax.Array
  create: jax.stages.Traced
  target: state_lib.TrainState
  train_step: step_lib.TrainStep
  augmentation: augmentation_lib.Augmentation

  def init_state(self) -> state_lib.TrainState:
    """Returns the state before the first step, on the devices."""
    return compilation.compiled(self.create)()

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
      if isinstance(targets, tuple):
        targets, _ = targets  # of images, not of tokens
      both = dict(batch), (image, targets)
      return jax.tree.map(lambda rows: rows[:count], both)

    arguments = step_lib.augment_key(self.key, 0), batch
    traced = jax.jit(
        augment,
        out_shardings=self.target.step.sharding,
        compiler_options=compilation.quick_compilation(),
    ).trace(*arguments)
    return jax.device_get(compilation.compiled(traced)(*arguments))


def build(
    config: ml_collections.ConfigDict,
    model: nn.Module,
    data: Data,
    schedule: Schedule,
) -> Trainer:
  """Returns the functions that train a model as a resolved config says.

  Raises:
    UserError: If optimizer and schedule, or loss and model, do not go together.
  """
  devices = data.devices
  rate = learning_rate.from_config(config.optimizer, schedule)
  tx = optimizer.from_config(config.optimizer, rate)
  augmentation = augmentation_lib.from_config(
      config, data.info, schedule, model
  )
  train_step = step_lib.make_train_step(
      model,
      tx,
      augmentation,
      losses.from_config(config, model),
      learning_rate=functools.partial(optimizer.last_learning_rate, rate),
      ema_decay=state_lib.ema_decay_per_step(
          config.ema_decay, config.batch_size
      ),
      ema_warmup=config.ema_warmup,
      freeze=config.optimizer.freeze,
      freeze_statistics=config.optimizer.freeze_statistics,
      skip_nonfinite=config.nan_policy == 'skip',
      accumulate_steps=config.accumulate_steps,
      pairs=recipes.task(config) == 'classification',
  )
  key = jax.random.key(config.seed)

  def create():
    return state_lib.create(
        model,
        tx,
        jax.random.fold_in(key, _INIT),
        data.train.image_shape,
        ema=config.ema_decay > 0,
    )

  created = jax.jit(
      create,
      out_shardings=devices.replicated,
      compiler_options=compilation.quick_compilation(),
  ).trace()
  return Trainer(
      # Not `devices.replicate`, which passes arrays of several processes
      # through NumPy: keys cannot be converted.
      key=jax.jit(
          lambda: jax.random.fold_in(key, _TRAIN),
          out_shardings=devices.replicated,
      )(),
      create=created,
      target=devices.target(created.out_info),
      train_step=jax.jit(
          train_step,
          donate_argnums=0,
          out_shardings=devices.replicated,
          compiler_options=_compiler_options(config.compile_effort),
      ),
      augmentation=augmentation,
  )


def evaluation(
    config: ml_collections.ConfigDict,
    model: nn.Module,
    data: Data,
    terminal: Terminal,
) -> Evaluate:
  """Returns the function that evaluates weights of the model on a split."""
  task = recipes.task(config)
  eval_step = compilation.show_compilation(
      jax.jit(
          evaluator.make_eval_step(model, data.info.mean, data.info.std, task),
          out_shardings=data.devices.replicated,
          compiler_options=_compiler_options(config.compile_effort),
      ),
      'the evaluation',
      terminal,
  )

  def evaluate(saved, records):
    scores = evaluator.evaluate(
        eval_step,
        raw_and_ema.unpack(saved),
        data.eval_batches(records, config.eval_batch_size),
        task,
        records=records,
        num_classes=len(data.info.class_names),
    )
    for which in scores:
      if said := evaluator.not_finite(scores[which], task):
        terminal.say(f'{said} with the {which} weights; they count as wrong')
    return raw_and_ema.merged(scores)

  return evaluate


def _compiler_options(effort):
  return compilation.quick_compilation() if effort == 'quick' else None
