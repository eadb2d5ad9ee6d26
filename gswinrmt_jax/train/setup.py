"""What a run is made of, built from its recipe."""

from collections.abc import Callable, Mapping
import dataclasses
import itertools
from typing import Any

import jax
import ml_collections
import optax

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, label_maps
from gswinrmt_jax.distributed import compilation, mesh, processes
from gswinrmt_jax.evals import evaluator
from gswinrmt_jax.train import (
    average,
    build,
    dispatch,
    inputs,
    joined_draws,
    resident,
    token_labels,
)
from gswinrmt_jax.train import schedule as plan
from gswinrmt_jax.train import train_state as state_lib
from gswinrmt_jax.train import train_step as step_lib

# Streams of the seed: parameters, and all that is drawn while training.
_INIT, _TRAIN = 0, 1


@dataclasses.dataclass(frozen=True)
class Parts:
  """Data, plan and compiled functions of a run; its course is `course`.

  Attributes:
    config: The resolved recipe.
    info: The data set, its image size that of the records.
    train_data: The training records, wherever they are.
    val_data: The validation records, likewise.
    maps: Label maps of the training records, or None.
    plan: At which steps the run validates and ends.
    devices: Where batches and state go.
    schedule: The learning rate by step.
    augmentation: What the training step does to a batch.
    key: Of all that is drawn while training.
    create: What returns the state before the first step, traced.
    target: That state's shapes, with shardings.
    advance: `(state, supply, key) -> (state, metrics)`, several steps,
      jitted; takes over the state's memory.
    eval_step: `(variables, batch) -> sums`, jitted.
  """

  config: ml_collections.ConfigDict
  info: datasets.Info
  train_data: batches_lib.Records | batches_lib.Cropped | resident.Resident
  val_data: batches_lib.Records | resident.Resident
  maps: label_maps.LabelMaps | None
  plan: plan.Plan
  devices: mesh.Devices
  schedule: optax.Schedule
  augmentation: step_lib.Augmentation
  key: jax.Array
  create: jax.stages.Traced
  target: state_lib.TrainState
  advance: dispatch.Advance
  eval_step: evaluator.EvalStep

  def create_state(self) -> state_lib.TrainState:
    """Returns the state before the first step, on the devices."""
    create = jax.jit(
        joined_draws.joined(self.create),
        out_shardings=self.devices.shardings(self.target),
        compiler_options=mesh.quick_compilation(),
    )
    return compilation.compiled(compilation.lowered(create))()

  def evaluate(
      self,
      saved: Mapping[str, Any],
      data: batches_lib.Records | resident.Resident,
  ) -> dict[str, Any]:
    """Returns the figures of the weights and, as `ema_NAME`, their average."""
    return self.begin_evaluation(saved, data)()

  def begin_evaluation(
      self,
      saved: Mapping[str, Any],
      data: batches_lib.Records | resident.Resident,
      *,
      most: int | None = None,
  ) -> Callable[[], dict[str, Any]]:
    """Begins `evaluate`, as `evaluator.begin`; returns what waits for it.

    Args:
      saved: The weights.
      data: The records.
      most: Batches to take; None takes all.
    """
    batch_size = self.devices.rounded_up(self.config.eval_batch_size)
    batches = batches_lib.eval_batches(
        data, batch_size=batch_size, share=processes.share()
    )
    figures = evaluator.begin(
        self.eval_step,
        average.by_name(saved),
        itertools.islice(batches, most),
        lambda batch: resident.complete(self.devices.put_batch(batch), data),
    )
    return lambda: average.merged(figures())


def make_parts(config: ml_collections.ConfigDict) -> Parts:
  """Builds the parts of a run; fetches and decodes its data.

  Args:
    config: A resolved recipe.

  Raises:
    UserError: If recipe or data do not allow it.
  """
  placing = mesh.Devices(config.mesh.data, config.mesh.fsdp)
  placing.check_batch_size(config.batch_size, config.accumulate_steps)
  info = datasets.info(config.data.name, config.data.dir)
  augmentation, loss = token_labels.choose(config, info)
  datasets.ensure(config.data.name, config.data.dir)
  maps = token_labels.open_for(config)
  storage, replicate = config.data.storage, placing.replicate
  train_data = resident.place(inputs.load_train(config), storage, replicate)
  val_data = inputs.load_eval(config, config.data.val_split)
  val_data = resident.place(val_data, storage, replicate)
  inputs.check_sizes(config, train_data, val_data)
  inputs.check_test(config)
  image_shape = train_data.image_shape
  info = dataclasses.replace(info, image_size=image_shape[:2])

  model = build.make_model(config, len(info.class_names), image_shape)
  course = plan.make_plan(config, len(train_data))
  schedule, tx = build.make_optimizer(config, course)
  decay = build.ema_decay(config)
  key = jax.random.key(config.seed)

  def create():
    init_key = jax.random.fold_in(key, _INIT)
    return state_lib.create(model, tx, init_key, image_shape, ema=decay > 0)

  created = compilation.traced(jax.jit(create))
  target = placing.target(created.out_info)
  train_step = step_lib.make_train_step(
      model,
      tx,
      augmentation,
      loss,
      ema_decay=decay,
      skip_nonfinite=build.skips_nonfinite(config),
      accumulate_steps=config.accumulate_steps,
      placing=placing,
  )
  options = build.compiler_options(config)
  advance = dispatch.jit_advance(
      dispatch.make_advance(train_step), placing, target, options
  )
  eval_step = evaluator.make_eval_step(model, build.make_normalization(info))
  return Parts(
      config=config,
      info=info,
      train_data=train_data,
      val_data=val_data,
      maps=maps,
      plan=course,
      devices=placing,
      schedule=schedule,
      augmentation=augmentation,
      key=jax.random.fold_in(key, _TRAIN),
      create=created,
      target=target,
      advance=advance,
      eval_step=jax.jit(
          eval_step,
          out_shardings=placing.replicated,
          compiler_options=options,
      ),
  )
