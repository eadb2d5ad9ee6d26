"""A run: restore, step, validate, save, until done."""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
import ml_collections

from gswinrmt_jax.errors import RunError, Stopped, UserError
from gswinrmt_jax.training import (
    average,
    background,
    build,
    checkpoint,
    closing,
    compilation,
    feed,
    fine_tune,
    finish,
    first_batch,
    image_spec,
    inputs,
    log,
    meter,
    parts,
    plots,
    processes,
    profile,
    run_folder,
    run_lock,
    signals,
)
from gswinrmt_jax.training import progress as progress_lib
from gswinrmt_jax.training import step as step_lib


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
    UserError: If recipe, data or folder do not allow it.
    RunError: If it cannot go on: a loss that is not finite, a full disk.
    Stopped: If a signal ended it, with a checkpoint.
  """
  compilation.keep_programs()
  heard, terminal = signals.Signals(), terminal or processes.terminal()
  with heard.heard(), contextlib.ExitStack() as held:
    with processes.together():
      if processes.is_first():
        held.enter_context(run_lock.of_run(folder))
      run = Run(build.resolve(config), folder, terminal, heard)
    try:
      processes.check_same('configs or images', run.identity())
      return run.run()
    except KeyboardInterrupt as error:
      if not isinstance(error, Stopped):  # a second signal
        run.checkpoints.abandon()
      raise
    finally:
      run.close()


class Run:
  """The course of one run."""

  def __init__(
      self,
      config: ml_collections.ConfigDict,
      folder: pathlib.Path,
      terminal: log.Terminal,
      heard: signals.Signals | None = None,
  ):
    """Builds all parts; the folder is touched last, when they fit together."""
    self.config, self.folder, self.terminal = config, folder, terminal
    self._signals = heard or signals.Signals()
    inputs.check(config)
    # What can be refused at once is, before data are fetched and decoded.
    run_folder.check_folder(folder, config)
    self.checkpoints = checkpoint.Checkpoints(
        folder / 'checkpoints',
        read_only=not processes.is_first(),
        warn=terminal.say,
    )
    if processes.is_first():
      self.checkpoints.clean()
    newest = self.checkpoints.newest_meta()
    if newest:
      run_folder.check_checkpoint(newest[1]['config'], config, newest[0])
    # A run that goes on has started from them already.
    started = bool(self.checkpoints.steps())
    self._source = None if started else fine_tune.load(config, terminal.say)
    self.parts = parts.make_parts(config)
    if self._source is not None:
      fine_tune.check(self.parts.target.variables, self._source)
    self._images = image_spec.of_run(
        config,
        self.parts.info,
        self.parts.train_data,
        self.parts.val_data,
        self.parts.maps,
    )
    if processes.is_first():
      run_folder.open_folder(folder, config)
      self._images.write(folder)
    self._decay_range = jax.jit(step_lib.decay_range)
    self.log = None
    self._feed = None
    self._beside = None
    self._pending = None  # metrics of the interval that a start falls into
    self._background = background.Background()
    self._profile = profile.Profile(
        self.parts.plan.profiled, folder / 'profile'
    )

  def close(self) -> None:
    """Waits for what is being written, closes files, ends the workers."""
    with contextlib.ExitStack() as stack:  # Each, even if another fails.
      for part in (
          self.log,
          self._feed,
          self._background,
          self._profile,
          self.checkpoints,
      ):
        if part:
          stack.callback(part.close)
      if self._beside:
        stack.callback(self._beside.shutdown)

  def identity(self) -> list[Any]:
    """Returns what has to be the same in all processes."""
    return [self.config.to_dict(), dataclasses.asdict(self._images)]

  def run(self) -> dict[str, Any]:
    """Trains to the end of the plan and sums up."""
    make_state, start = self._restore_or_create()
    stop = self.parts.plan.stop_step
    # One of an earlier end does not matter, even if it is damaged.
    summary = closing.read(self.folder, start) if start >= stop else None
    if summary:
      # The test split is not read a second time.
      self.terminal.say(f'{self.folder} is complete.')
    else:
      self._open_log(start)
      self._announce(start)
      state = self._train(make_state, start) if start < stop else make_state()
      summary = finish.finish(
          self.parts, self.folder, self.checkpoints, state, self.log.entries
      )
    self.terminal.say(closing.table(summary))
    return summary

  def _open_log(self, start):
    if processes.is_first():
      self.log = log.MetricsLog(self.folder, step=start, terminal=self.terminal)
      run_folder.record_start(self.folder, self.config, start)
    else:
      self.log = log.SilentLog(self.folder, step=start)

  def _restore_or_create(self):
    """Returns what returns the state, perhaps after a while, and its step."""
    restored = self.checkpoints.restore_latest(self.parts.target)
    if restored:
      self.terminal.say(
          f'Going on from the checkpoint of step {restored.step}.'
      )
      self._pending = restored.meta.get('pending')
      return lambda: restored.tree, restored.step
    if self._source is not None or jax.device_count() > 1:
      state = self._create()
      return lambda: state, 0
    # While the step is compiled: making a state is mostly compilation, too. Not
    # on several devices: of two programs at once, one might wait on some of
    # them for what the other keeps from beginning elsewhere.
    self._beside = concurrent.futures.ThreadPoolExecutor(1)
    return self._beside.submit(self._create).result, 0

  def _create(self):
    state = self.parts.create_state()
    if self._source is not None:
      source, self._source = self._source, None
      state = fine_tune.start(state, source, self.terminal.say)
    return self.parts.devices.place(state)

  def _announce(self, start):
    of = self.parts
    self.terminal.say(
        f'{self.config.model.name}, {closing.parameter_count(of.target):,} '
        f'parameters, on {self.config.data.name}: {len(of.train_data):,} '
        f'training and {len(of.val_data):,} validation images.'
    )
    self.terminal.say(
        f'Steps {start:,} to {of.plan.stop_step:,} of '
        f'{of.plan.total_steps:,}, {len(jax.devices())} x '
        f'{jax.devices()[0].device_kind}. Run folder: {self.folder}'
    )

  def _train(self, make_state, start):
    """Steps from `start` to the end; the only loop."""
    plan = self.parts.plan
    self._feed = feed.Feed(self.parts, start)
    upcoming = next(self._feed)
    if not start:
      with self.terminal.sparing('augmented_batch.png'):
        first_batch.draw(
            self.parts, upcoming.supply, self.folder / 'augmented_batch.png'
        )
    advance = compilation.compiled(
        self.parts.advance,
        self.parts.target,
        upcoming.supply,
        self.parts.key,
        terminal=self.terminal,
    )
    state = make_state()
    readings = meter.Meter(
        self.config.batch_size,
        skip=build.skips_nonfinite(self.config),
        pending=self._pending,
    )
    progress = progress_lib.Progress(self.log, self.terminal, plan, start=start)
    with self._signals.deferred():
      while upcoming:
        current, step = upcoming, upcoming.last
        self._profile.begin(current.steps)
        with jax.profiler.StepTraceAnnotation('train', step_num=step):
          state, metrics = advance(state, current.supply, self.parts.key)
        readings.add(metrics, len(current.steps))
        with readings.waiting():  # The devices are busy meanwhile.
          upcoming = self._next()
        if self._profile.end(step, metrics):
          self.terminal.say(f'Trace in {self.folder / "profile"}.')

        if plan.reads_at(step):
          values, speed = self._finite(readings.read, step)
          skipped = progress.skipped + int((values['finite'] == 0).sum())
          extra = self._extra(state, step - skipped)
          progress.interval(step, values, speed, extra)
          self.checkpoints.check()
        if step in plan.milestones:
          self._close_epoch(state, step, plan.milestones[step], progress)
          readings.restart()
        self._after(state, step, readings)
    self._background.wait()
    return state

  def _next(self):
    """Returns what comes next, None at the end or if a signal ends the run."""
    try:
      return next(self._feed, None)
    except UserError:
      # Sent to the workers, too: they are gone. Of several processes all have
      # to come to the step on which they end.
      if self._signals.received and processes.share()[1] == 1:
        return None
      raise

  def _extra(self, state, updates):
    """Returns what an interval tells beside the metrics of its steps."""
    rate = self.parts.schedule(updates - 1)
    return {'learning_rate': rate, **self._decay_range(state.params)}

  def _after(self, state, step, readings):
    """Saves amid an epoch if it is time to, and ends if a signal said so."""
    asked, plan = self._asked(step), self.parts.plan
    saved = step in plan.milestones
    if not saved and (asked or plan.saves_at(step)):
      pending = self._finite(readings.pending, step)
      self._save(state, step, plan.epoch_of(step), pending=pending)
    if asked:
      self.checkpoints.wait()
      raise Stopped(
          f'stopped by {signals.name(asked)} after step {step:,}, with a '
          'checkpoint of that step; the same command goes on from there',
          asked,
      )

  def _asked(self, step):
    """Returns the number of a signal that said so, or 0.

    Several processes agree on it where they wait for the devices anyway.
    """
    if processes.share()[1] > 1 and not self.parts.plan.reads_at(step):
      return 0
    return processes.greatest(self._signals.received or 0)

  def _close_epoch(self, state, step, epoch, progress):
    """Validates, logs, saves and plots."""
    figures = self.parts.evaluate(state.saved_weights, self.parts.val_data)
    # Logged first: an entry without its checkpoint is taken out on resuming,
    # while a checkpoint without its entry would leave a gap.
    progress.epoch(step, epoch, figures)
    self._save(state, step, epoch, figures)
    if processes.is_first():
      self._background.begin(self._plot, list(self.log.entries))

  def _plot(self, entries):
    with self.terminal.sparing('curves.png'):
      plots.write_curves(self.folder / 'curves.png', entries, self.folder.name)

  def _finite(self, read, step):
    """Returns what a meter reads; says how to go on if it is not finite."""
    try:
      return read(step)
    except RunError as error:
      self.checkpoints.wait()
      steps = self.checkpoints.steps()
      last = f'that of step {steps[-1]}' if steps else 'none yet'
      raise RunError(
          f'{error}; last good checkpoint: {last}, in {self.folder}, from '
          'which the same command goes on: with --config.nan_policy=skip past '
          'single steps that are not finite; if they go on, in another '
          '--workdir with a lower config.optimizer.learning_rate or '
          'config.dtype=float32'
      ) from error

  def _save(self, state, step, epoch, figures=None, pending=None):
    """Saves the state; without figures it is one from amid an epoch."""
    accuracy, which = average.better(figures) if figures else (None, None)
    self.checkpoints.save(
        state,
        accuracy=accuracy,
        meta={
            'config': self.config.to_dict(),
            'step': step,
            'epoch': epoch,
            'weights': which or average.RAW,
            'data': {'seed': self.config.seed, 'next_batch': step},
            'pending': pending,
        },
    )
