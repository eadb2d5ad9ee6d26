"""The metrics of a run, from the devices to its writers.

An entry is a dict of scalars with a `kind`, 'train' for an interval of steps or
'epoch', and the `step` after which it was made.
"""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import json
import pathlib
import time
from typing import Any

import jax
import numpy as np

from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.errors import RunError, UserError
from gswinrmt_jax.runs.progress import Progress
from gswinrmt_jax.runs.scores import SCORES
from gswinrmt_jax.runs.writers import JsonLines, TensorBoard
from gswinrmt_jax.terminal import Terminal

# Metrics for which an interval logs the last value instead of the mean.
_LAST = ('learning_rate', 'gamma_min', 'gamma_max')
# Rounding makes an epoch's means independent of how it is split into intervals.
_DIGITS = 8


class Clock:
  """Measures intervals of steps, and the time since the first step."""

  def __init__(self):
    """Starts an interval."""
    self._began = time.perf_counter()
    self.restart()

  def restart(self) -> None:
    """Starts an interval."""
    self._waited, self._since = 0.0, time.perf_counter()

  def timing(self, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields batches and measures the time that the host waits for them.

    The clock starts here, so that the first interval excludes compilation.
    """
    self._began = time.perf_counter()
    self.restart()
    iterator = iter(batches)
    while True:
      before = time.perf_counter()
      batch = next(iterator, None)
      self._waited += time.perf_counter() - before
      if batch is None:
        return
      yield batch

  def elapsed(self) -> float:
    """Returns the seconds since the first step."""
    return time.perf_counter() - self._began

  def interval(self) -> tuple[float, float]:
    """Returns the seconds of this interval, and those waited for data."""
    return time.perf_counter() - self._since, self._waited


class MetricsLog:
  """The log of a run.

  Attributes:
    entries: All entries so far, including those of the run's earlier starts.
    clock: Measures the intervals.
  """

  def __init__(
      self,
      folder: pathlib.Path,
      *,
      step: int,
      schedule: Any,
      terminal: Terminal,
      skip_nonfinite: bool = False,
      read_only: bool = False,
  ):
    """Opens the log of a run that resumes after `step`.

    Removes entries after `step`, which an interrupted run left, so that nothing
    counts twice.

    Args:
      folder: The run folder.
      step: Number of updates already made.
      schedule: The run's `train.schedule.Schedule`.
      terminal: Where progress is printed.
      skip_nonfinite: Whether non-finite steps are allowed.
      read_only: Whether another process writes the log.
    """
    self._schedule, self._skip = schedule, skip_nonfinite
    self.entries = [e for e in read_metrics(folder) if e['step'] <= step]
    self.clock = Clock()
    self._progress = Progress(
        schedule, terminal, self.entries, self.clock.elapsed, start=step
    )
    self._files = []
    if not read_only:
      self._files = [
          JsonLines(folder, self.entries),
          TensorBoard(folder / 'tensorboard', step=step, warn=terminal.say),
      ]
    self._metrics = []

  def add(self, metrics: Mapping[str, jax.Array]) -> None:
    """Keeps the metrics of a step, which stay on the device.

    Waits for the step before it, so that one step is queued while another is
    computed. JAX would queue dozens, and a signal, which ends a run after the
    queued steps, would have to wait for them.
    """
    if self._metrics:
      jax.block_until_ready(self._metrics[-1])
    self._metrics.append(metrics)

  def write_interval(self, step: int) -> None:
    """Waits for the steps up to `step`; writes their means.

    Raises:
      RunError: If a loss or gradient is not finite, unless such steps are
        allowed, or the log cannot be written.
    """
    steps = jax.device_get(self._metrics)
    self._metrics = []
    seconds, waited = self.clock.interval()
    means = interval_means(steps)
    if not self._skip:
      check_finite(steps, step)
    size = self._schedule.batch_size
    self._write(
        'train',
        step,
        {
            'epoch': step * size / self._schedule.num_examples,
            **means,
            'seconds': seconds,
            'images_per_second': len(steps) * size / seconds,
            'data_wait': waited / seconds,
        },
    )

  def write_epoch(self, step: int, scores: Mapping[str, Any]) -> None:
    """Writes the means since the last validation, and its scores.

    Args:
      step: Last step of the epoch.
      scores: The validation scores; those of the EMA are called `ema_NAME`.

    Raises:
      RunError: If no step was finite, or the log cannot be written.
    """
    epoch = self._schedule.epoch_of(step)
    intervals, size = [], self._schedule.batch_size
    for entry in self.entries:
      if entry['kind'] == 'epoch':
        intervals = []
      else:  # The entry before it may be lost.
        images = entry['images_per_second'] * entry['seconds']
        intervals.append((round(images / size), entry))
    names = [p + name for p in ('', raw_and_ema.PREFIX) for name in SCORES]
    self._write(
        'epoch',
        step,
        {
            'epoch': epoch,
            **_train_means(intervals, epoch),
            **{f'val_{name}': scores[name] for name in names if name in scores},
            'steps': sum(steps for steps, _ in intervals),
            'seconds': sum(entry['seconds'] for _, entry in intervals),
        },
    )

  def close(self) -> None:
    """Closes the files."""
    for file in self._files:
      file.close()

  def _write(self, kind, step, values):
    entry = {'kind': kind, 'step': step, **values}
    self.entries.append(entry)
    for writer in (*self._files, self._progress):
      writer.write(entry)
    # Neither validation nor writing is part of the next interval.
    self.clock.restart()


def read_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the entries of `metrics.jsonl`, without what a crash left."""
  path = folder / 'metrics.jsonl'
  entries = []
  for line in path.read_bytes().splitlines() if path.exists() else ():
    with contextlib.suppress(ValueError):  # part of a line, or zeros
      entries.append(json.loads(line))
  return entries


def check_new(folder: pathlib.Path) -> None:
  """Refuses to start again in a folder whose checkpoints were removed.

  A new run would overwrite the log. A run that was killed before its first
  checkpoint was complete may start again: it has no summary, and has logged at
  most two validations, as the second save waits for the first.

  Raises:
    UserError: If there is a summary, or three validations or more are logged.
  """
  validations = [e for e in read_metrics(folder) if e['kind'] == 'epoch']
  if len(validations) > 2 or (folder / 'summary.json').exists():
    raise UserError(
        f'{folder} has the log or the summary of a run, but no checkpoint: put '
        'the checkpoints back, choose another --workdir, or remove '
        'metrics.jsonl and summary.json to start again at step 0'
    )


def interval_means(steps: list[Mapping[str, Any]]) -> dict[str, float]:
  """Returns the means over finite steps, and how many were `skipped`.

  Learning rate and decays are those of the last step instead.
  """
  finite = np.array([metrics['finite'] for metrics in steps]) > 0
  means = {}
  for name in steps[0]:
    values = np.array([metrics[name] for metrics in steps], np.float64)
    if name in _LAST:
      means[name] = float(values[-1])
    elif name != 'finite' and finite.any():
      means[name] = float(values[finite].mean())
  if not finite.all():
    means['skipped'] = int((~finite).sum())
  return means


def check_finite(steps: list[Mapping[str, Any]], last: int) -> None:
  """Raises `RunError` if one of the steps up to `last` is not finite."""
  first = last - len(steps) + 1
  for step, metrics in enumerate(steps, first):
    if not metrics['finite']:
      raise RunError(
          f'loss or gradient not finite at step {step:,} (seen when reading '
          f'steps {first} to {last}); the same command resumes from the last '
          'checkpoint, if there is one; add --config.nan_policy=skip to skip '
          'single steps that are not finite; if there are many, start another '
          '--workdir with a lower config.optimizer.learning_rate or '
          'config.dtype=float32'
      )


def _train_means(intervals, epoch):
  """Returns the means of the metrics over all updates of the intervals."""
  updates = [
      (steps - entry.get('skipped', 0), entry)
      for steps, entry in intervals
      if 'loss' in entry
  ]
  if not updates:
    raise RunError(
        f'no step of epoch {epoch} had a finite loss and gradient: try a '
        'lower config.optimizer.learning_rate or config.dtype=float32'
    )
  counts, entries = zip(*updates, strict=True)
  means = {
      name: np.average([entry[name] for entry in entries], weights=counts)
      for name in entries[0]
      if 'loss' in name or 'accuracy' in name
  }
  return {
      f'train_{name}': round(float(mean), _DIGITS)
      for name, mean in means.items()
  }
