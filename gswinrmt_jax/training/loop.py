"""A run: restore, step, validate, save, until done."""

import contextlib
import dataclasses
import pathlib
import time
from typing import Any

import jax
import ml_collections

from gswinrmt_jax.data import datasets, pipeline
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import (
    average,
    build,
    checkpoint,
    closing,
    devices,
    evaluation,
    fine_tune,
    image_spec,
    inputs,
    log,
    meter,
    plan,
    plots,
    run_folder,
    token_labels,
)
from gswinrmt_jax.training import progress as progress_lib
from gswinrmt_jax.training import state as state_lib
from gswinrmt_jax.training import step as step_lib

# Streams of the seed: parameters, and all that is drawn while training.
_INIT, _TRAIN = 0, 1


def train(
    config: ml_collections.ConfigDict,
    folder: pathlib.Path,
    terminal: log.Terminal | None = None,
) -> dict[str, Any]:
  """Trains as the recipe says, from the folder's last checkpoint if it has one.

  Args:
    config: A recipe.
    folder: The run folder.
    terminal: Where progress is told.

  Returns:
    The closing summary, as in `summary.json`.

  Raises:
    UserError: If recipe, data or folder do not allow it, or the loss is not
      finite.
  """
  run = Run(build.resolve(config), folder, terminal or log.Terminal())
  try:
    return run.run()
  finally:
    run.close()


class Run:
  """The parts of one run, and its course."""

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      folder: pathlib.Path,
      terminal: log.Terminal,
  ):
    """Builds all parts; the folder is touched last, when they fit together."""
    self.config, self.folder, self.terminal = config, folder, terminal
    inputs.check(config)
    self.info = datasets.info(config.data.name, config.data.dir)
    # What can be refused at once is, before data are fetched and decoded.
    run_folder.check_folder(folder, config)
    self.checkpoints = checkpoint.Checkpoints(
        folder / 'checkpoints', warn=terminal.say
    )
    # A run that goes on has started from them already.
    started = bool(self.checkpoints.steps())
    self._source = None if started else fine_tune.load(config, terminal.say)
    self._augmentation, loss = token_labels.choose(config, self.info)
    datasets.ensure(config.data.name, config.data.dir)
    self._maps = token_labels.open_for(config)
    self.train_data = inputs.load_train(config)
    self.val_data = inputs.load_eval(config, config.data.val_split)
    inputs.check_sizes(config, self.train_data, self.val_data)
    inputs.check_test(config)
    image_shape = self.train_data.image_shape
    self.info = dataclasses.replace(self.info, image_size=image_shape[:2])
    self.plan = plan.make_plan(config, len(self.train_data))
    self.devices = devices.Devices()
    self.devices.check_batch_size(config.batch_size)

    model = build.make_model(config, len(self.info.class_names), image_shape)
    self.schedule, tx = build.make_optimizer(config, self.plan)
    decay = build.ema_decay(config)
    key = jax.random.key(config.seed)
    self._key = jax.random.fold_in(key, _TRAIN)
    self._create = lambda: state_lib.create(
        model, tx, jax.random.fold_in(key, _INIT), image_shape, ema=decay > 0
    )
    self.target = self.devices.target(jax.eval_shape(self._create))
    self._train_step = jax.jit(
        step_lib.make_train_step(
            model, tx, self._augmentation, loss, ema_decay=decay
        ),
        donate_argnums=0,
        out_shardings=self.devices.replicated,
    )
    self._decay_range = jax.jit(step_lib.decay_range)
    self._eval_step = jax.jit(
        evaluation.make_eval_step(model, build.make_normalization(self.info))
    )

    if self._source is not None:
      fine_tune.check(self.target.variables, self._source)
    run_folder.open_folder(folder, config)
    image_spec.of_run(
        config, self.info, self.train_data, self.val_data, self._maps
    ).write(folder)
    self.log = None
    self._batches = None

  def close(self) -> None:
    """Waits for what is being written, closes files, ends the workers."""
    with contextlib.ExitStack() as stack:  # Each, even if another fails.
      for part in (self.log, self._batches, self.checkpoints):
        if part:
          stack.callback(part.close)

  def run(self) -> dict[str, Any]:
    """Trains to the end of the plan and sums up."""
    state, start = self._restore_or_create()
    summary = closing.read(self.folder, start)
    if start >= self.plan.stop_step and summary:
      # The test split is not read a second time.
      self.terminal.say(f'{self.folder} is complete.')
    else:
      self.log = log.MetricsLog(self.folder, step=start)
      run_folder.record_start(self.folder, self.config, start)
      self._announce(state, start)
      if start < self.plan.stop_step:
        state = self._train(state, start)
      summary = self._sum_up(state)
    self.terminal.say(closing.table(summary))
    return summary

  def _restore_or_create(self):
    restored = self.checkpoints.restore_latest(self.target)
    if restored:
      self.terminal.say(
          f'Going on from the checkpoint of step {restored.step}.'
      )
      return restored.tree, restored.step
    create = jax.jit(
        self._create,
        out_shardings=self.devices.replicated,
        compiler_options=devices.quick_compilation(),
    )
    state = create()
    if self._source is not None:
      source, self._source = self._source, None
      state = fine_tune.start(state, source, self.terminal.say)
    return self.devices.replicate(state), 0

  def _announce(self, state, start):
    self.terminal.say(
        f'{self.config.model.name}, {closing.parameter_count(state):,} '
        f'parameters, on {self.config.data.name}: {len(self.train_data):,} '
        f'training and {len(self.val_data):,} validation images.'
    )
    self.terminal.say(
        f'Steps {start:,} to {self.plan.stop_step:,} of '
        f'{self.plan.total_steps:,}, {len(jax.devices())} x '
        f'{jax.devices()[0].device_kind}. Run folder: {self.folder}'
    )

  def _train(self, state, start):
    """Steps from `start` to the end; the only loop."""
    batches = pipeline.train_batches(
        self.train_data,
        batch_size=self.config.batch_size,
        seed=self.config.seed,
        start_step=start,
        repeats=self.config.data.repeats,
    )
    self._batches = batches
    if self._maps:
      batches = token_labels.with_maps(batches, self._maps)
    batch = self.devices.put_batch(next(batches))
    if not start:
      self._draw(batch)
    train_step = self._compile(state, batch)
    milestones = self.plan.milestones
    readings = meter.Meter(self.config.batch_size)
    progress = progress_lib.Progress(
        self.log, self.terminal, self.plan, start=start
    )
    for step in range(start + 1, self.plan.stop_step + 1):
      with jax.profiler.StepTraceAnnotation('train', step_num=step):
        state, metrics = train_step(state, batch, self._key)
      readings.add(metrics)
      if step < self.plan.stop_step:
        # The device is busy meanwhile.
        before = time.perf_counter()
        batch = self.devices.put_batch(next(batches))
        readings.waited(time.perf_counter() - before)

      if step % self.config.log_every_steps == 0 or step in milestones:
        extra = {
            'learning_rate': self.schedule(step - 1),
            **self._decay_range(state.params),
        }
        progress.interval(step, *self._read(readings, step), extra)
      if step in milestones:
        figures = self._evaluate(state.saved_weights, self.val_data)
        # Logged first: an entry without its checkpoint is taken out on
        # resuming, while a checkpoint without its entry would leave a gap.
        progress.epoch(step, milestones[step], figures)
        self._save(state, step, milestones[step], figures)
        plots.write_curves(
            self.folder / 'curves.png', self.log.entries, self.folder.name
        )
        readings.restart()
    return state

  def _draw(self, batch):
    """Draws the first batch as the first step will see it."""
    augment = jax.jit(
        self._augmentation, compiler_options=devices.quick_compilation()
    )
    image, targets = augment(step_lib.augment_key(self._key, 0), batch)
    if self._maps:
      targets, _ = targets  # those of the tokens are not written down
    plots.write_augmented_batch(
        self.folder / 'augmented_batch.png',
        batch,
        (image, targets),
        self.info,
    )

  def _compile(self, state, batch):
    """Compiles the step beforehand, so that no interval holds that time."""
    self.terminal.progress('Compiling the training step ...')
    before = time.perf_counter()
    compiled = self._train_step.lower(state, batch, self._key).compile()
    seconds = log.duration(time.perf_counter() - before)
    self.terminal.say(f'Compiled the training step in {seconds}.')
    return compiled

  def _read(self, readings, step):
    try:
      return readings.read(step)
    except UserError as error:
      self.checkpoints.wait()
      steps = self.checkpoints.steps()
      last = f'that of step {steps[-1]}' if steps else 'none yet'
      raise UserError(
          f'{error}; last good checkpoint: {last}, in {self.folder}; try a '
          'lower config.optimizer.learning_rate or config.dtype=float32'
      ) from error

  def _evaluate(self, saved, data):
    """Returns the figures of the weights and, as `ema_NAME`, their average."""
    batch_size = self.devices.rounded_up(self.config.eval_batch_size)
    figures = evaluation.evaluate_each(
        self._eval_step,
        average.by_name(saved),
        pipeline.eval_batches(data, batch_size=batch_size),
        self.devices.put_batch,
    )
    return average.merged(figures)

  def _save(self, state, step, epoch, figures):
    accuracy, which = average.better(figures)
    self.checkpoints.save(
        state,
        accuracy=accuracy,
        meta={
            'config': self.config.to_dict(),
            'step': step,
            'epoch': epoch,
            'weights': which,
            'data': {'seed': self.config.seed, 'next_batch': step},
        },
    )

  def _sum_up(self, state):
    """Sums up the last and the best checkpoint.

    The test split, if there is one, is read here, once, at the end of the whole
    schedule: a run that stops early is judged on validation data alone.
    """
    self.checkpoints.wait()
    last = int(state.step)
    restored = self.checkpoints.restore_best(self.target.saved_weights)
    best = restored.step
    tested = {}
    if last == self.plan.total_steps and self.config.data.test_split:
      data = inputs.load_eval(self.config, self.config.data.test_split)
      tested[last] = self._evaluate(state.saved_weights, data)
      if best != last:
        tested[best] = self._evaluate(restored.tree, data)
    summary = closing.summarize(
        self.config, self.plan, self.log.entries, tested, last=last, best=best
    )
    summary['parameters'] = closing.parameter_count(state)
    run_folder.write_json(self.folder / 'summary.json', summary)
    return summary
