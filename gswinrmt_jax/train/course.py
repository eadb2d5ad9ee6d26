"""The course of a run: step, read, validate, save, to the end of its plan."""

from collections.abc import Callable, Mapping
import contextlib
import functools
import pathlib
from typing import Any

import jax

from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.distributed import compilation, processes
from gswinrmt_jax.errors import RunError, Stopped, UserError
from gswinrmt_jax.runs import meter, plots
from gswinrmt_jax.runs import metrics_log as log_lib
from gswinrmt_jax.runs import progress as progress_lib
from gswinrmt_jax.train import (
    average,
    background,
    build,
    feed,
    first_batch,
    preemption,
    profiler,
    scalars,
    setup,
    snapshot,
)
from gswinrmt_jax.train.train_state import TrainState


class Course:
  """The only loop.

  The devices have something to do all the time: what the host does with steps
  that were sent, reading their metrics, logging and saving them, it does when
  the next are sent (`_runs_ahead` has exceptions).
  """

  def __init__(
      self,
      of: setup.Parts,
      folder: pathlib.Path,
      start: int,
      *,
      checkpoints: checkpointer.Checkpointer,
      log: log_lib.MetricsLog,
      terminal: log_lib.Terminal,
      heard: preemption.Signals,
  ):
    """Begins to read data.

    Args:
      of: The run's parts.
      folder: Its folder.
      start: Updates made before.
      checkpoints: Where it saves.
      log: Where metrics go.
      terminal: Where progress is told.
      heard: Signals, which end it behind a step.
    """
    self._of, self._folder, self._start = of, folder, start
    self._checkpoints, self._log = checkpoints, log
    self._terminal, self._signals = terminal, heard
    self._feed = feed.Feed(of, start)
    self._background = background.Background()
    self._profile = profiler.Profile(of.plan.profiled, folder / 'profile')
    self._snapshots = snapshot.Snapshots()
    self._upcoming = self._readings = self._progress = self._scalars = None

  def close(self) -> None:
    """Ends the workers, waits for what is being drawn or written."""
    with contextlib.ExitStack() as stack:  # Each, even if another fails.
      for part in (self._feed, self._background, self._profile):
        stack.callback(part.close)

  def train(
      self,
      make_state: Callable[[], TrainState],
      pending: Mapping[str, Any] | None,
  ) -> TrainState:
    """Steps to the end.

    Args:
      make_state: Returns the state to begin with; called while the step is
        compiled.
      pending: Of the checkpoint that the run goes on from, metrics that had not
        been read.

    Returns:
      The state after the last step.

    Raises:
      RunError: If it cannot go on: a loss that is not finite, a full disk.
      Stopped: If a signal ended it, with a checkpoint.
      UserError: If a record cannot be decoded.
    """
    of = self._of
    self._upcoming = next(self._feed)
    advance, state = self._prepared(make_state)
    self._readings = meter.Meter(
        of.config.batch_size,
        skip=build.skips_nonfinite(of.config),
        pending=pending,
    )
    self._progress = progress_lib.Progress(
        self._log, self._terminal, of.plan, start=self._start
    )
    with self._signals.deferred():
      state = self._loop(advance, state)
    self._background.wait()
    return state

  def _prepared(self, make_state):
    """Returns the compiled steps and the state, draws a run's first batch."""
    of, supply = self._of, self._upcoming.supply
    finish = compilation.begin(
        of.advance, of.target, supply, of.key, terminal=self._terminal
    )
    self._signals.check()
    state = make_state()
    self._scalars = scalars.compiled(of.schedule, of.target, of.devices)
    if not self._start:
      name = 'augmented_batch.png'
      with self._terminal.sparing(name):
        first_batch.draw(of, supply, self._folder / name)
    if _on_accelerator():
      # A batch, to have the validation compiled while the step is: the first
      # epoch would end with a wait for that.
      begin = functools.partial(
          of.begin_evaluation, state.saved_weights, of.val_data, most=1
      )
      compilation.in_thread(begin).result()()
    self._signals.check()
    return finish(), state

  def _loop(self, advance, state):
    # Two dispatches have data on the devices, no third by another name.
    upcoming, self._upcoming = self._upcoming, None
    ahead = _runs_ahead()
    left = _nothing  # for the host to do of the steps before
    while upcoming:
      current, step = upcoming, upcoming.last
      if self._profile.begins(current.steps):
        left()
        left = _nothing
      self._profile.begin(current.steps)
      state, metrics = self._send(advance, state, current, left)
      self._readings.add(metrics, len(current.steps))
      with self._readings.waiting():  # The devices are busy meanwhile.
        upcoming = self._next()
      if self._profile.end(step, metrics):
        self._terminal.say(f'Trace in {self._folder / "profile"}.')

      left = self._leave(state, step)
      if not (upcoming and ahead):
        left()
        left = _nothing
      asked = self._asked(step)
      if asked:
        left()
        self._stop(state, step, asked)
    return state

  def _send(self, advance, state, current, left):
    """Sends steps, and does what is left of those before."""
    try:
      with jax.profiler.StepTraceAnnotation('train', step_num=current.last):
        state, metrics = advance(state, current.supply, self._of.key)
    except Exception:
      left()  # It is not lost with the steps ahead.
      raise
    left()
    return state, metrics

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

  def _asked(self, step):
    """Returns the number of a signal that said to stop, or 0.

    Several processes agree on it where they wait for the devices anyway.
    """
    if processes.share()[1] > 1 and not self._of.plan.reads_at(step):
      return 0
    return processes.greatest(self._signals.received or 0)

  def _leave(self, state, step):
    """Has the devices keep what the host needs before they go on.

    Returns:
      What the host does with it when they have been told to.
    """
    of = self._of
    extra = self._scalars(state) if of.plan.reads_at(step) else None
    if step in of.plan.milestones:
      # At once: the validation is no part of the interval's time.
      self._read(step, extra)
      figures = of.begin_evaluation(state.saved_weights, of.val_data)
      return functools.partial(
          self._close_epoch, step, figures, self._taken(state)
      )
    fields = self._taken(state) if of.plan.saves_at(step) else None
    return functools.partial(self._close_steps, step, extra, fields)

  def _taken(self, state):
    return self._snapshots.take(checkpointer.fields(state))

  def _close_steps(self, step, extra, fields):
    """Reads and saves what there is amid an epoch."""
    if extra is not None:
      self._read(step, extra)
    if fields is not None:
      self._save_amid_epoch(step, fields)

  def _read(self, step, extra):
    """Waits for the steps of an interval and tells of it."""
    values, speed = self._finite(self._readings.read, step)
    self._progress.interval(step, values, speed, jax.device_get(extra))
    self._checkpoints.check()

  def _close_epoch(self, step, figures, fields):
    """Logs, saves and, but for the last, draws the curves."""
    epoch, figures = self._of.plan.milestones[step], figures()
    self._readings.restart()  # The devices went on when they had these.
    # Logged first: an entry without its checkpoint is taken out on resuming,
    # while a checkpoint without its entry would leave a gap.
    self._progress.epoch(step, epoch, figures)
    self._save(fields, step, epoch, figures=figures)
    # Those of the whole run are its end's, which may be that of another start.
    if processes.is_first() and step < self._of.plan.stop_step:
      entries = list(self._log.entries)
      draw = plots.draw_curves
      self._background.begin(draw, self._folder, entries, self._terminal)

  def _stop(self, state, step, asked):
    """Ends behind a step, with a checkpoint of it."""
    plan = self._of.plan
    if step not in plan.milestones and not plan.saves_at(step):
      self._save_amid_epoch(step, self._taken(state))
    self._checkpoints.wait()
    raise Stopped(
        f'stopped by {preemption.name(asked)} after step {step:,}, with a '
        'checkpoint of that step; the same command goes on from there',
        asked,
    )

  def _save_amid_epoch(self, step, fields):
    pending = self._finite(self._readings.pending, step)
    self._save(fields, step, self._of.plan.epoch_of(step), pending=pending)

  def _save(self, fields, step, epoch, figures=None, pending=None):
    """Saves a state; without figures it is one from amid an epoch."""
    accuracy, which = average.better(figures) if figures else (None, None)
    config = self._of.config
    self._checkpoints.save(
        fields(),
        accuracy=accuracy,
        meta={
            'config': config.to_dict(),
            'step': step,
            'epoch': epoch,
            'weights': which or average.RAW,
            'data': {'seed': config.seed, 'next_batch': step},
            'pending': pending,
        },
    )

  def _finite(self, read, step):
    """Returns what a meter reads; says how to go on if it is not finite."""
    try:
      return read(step)
    except RunError as error:
      self._checkpoints.wait()
      steps = self._checkpoints.steps()
      last = f'that of step {steps[-1]}' if steps else 'none yet'
      raise RunError(
          f'{error}; last good checkpoint: {last}, in {self._folder}, from '
          'which the same command goes on: with --config.nan_policy=skip past '
          'single steps that are not finite; if they go on, in another '
          '--workdir with a lower config.optimizer.learning_rate or '
          'config.dtype=float32'
      ) from error


def _runs_ahead():
  """Returns whether steps are sent before the host is done with the last.

  Several processes agree by way of their devices, behind all that was sent. On
  a CPU the devices' work is the host's, and its steps are waited for in turn.
  """
  return _on_accelerator() and processes.share()[1] == 1


def _on_accelerator():
  return jax.default_backend() != 'cpu'


def _nothing():
  pass
