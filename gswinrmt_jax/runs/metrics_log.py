"""The metrics of a run: collected on the device, printed and logged.

`metrics.jsonl` has one JSON object per line. TensorBoard's event files have the
same values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import json
import os
import pathlib
import socket
import time
from typing import Any

import jax
import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.errors import RunError
from gswinrmt_jax.runs.progress import Progress
from gswinrmt_jax.terminal import Terminal

# Metrics for which an interval logs the last value instead of the mean.
_LAST = ('learning_rate', 'gamma_min', 'gamma_max')
_FIGURES = (
    'loss',
    'smoothed_loss',
    'accuracy',
    'top5_accuracy',
    'mean_iou',
    'pixel_accuracy',
)
# Scores of the raw weights and, if one is kept, of their EMA.
_VALIDATION = (*_FIGURES, *(raw_and_ema.PREFIX + name for name in _FIGURES))
# Rounding makes an epoch's means independent of how it is split into intervals.
_DIGITS = 8


class NotFiniteError(RunError):
  """A loss or gradient was not finite."""


class MetricsLog:
  """The log of a run.

  Attributes:
    entries: All entries so far, including those of the run's earlier starts.
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
    self._path = folder / 'metrics.jsonl'
    self._schedule, self._skip = schedule, skip_nonfinite
    self.entries = [e for e in read_metrics(folder) if e['step'] <= step]
    self._file = self._events = None
    if not read_only:
      lines = [json.dumps(entry) + '\n' for entry in self.entries]
      files.write_text(self._path, ''.join(lines))
      # Unbuffered, so that a failed write is not tried again later.
      self._file = self._path.open('ab', buffering=0)
      self._events = _Events(
          folder / 'tensorboard', step=step, warn=terminal.say
      )
    self._progress = Progress(schedule, terminal, self.entries, start=step)
    self._metrics = []
    self._restart_clock()

  def timing(self, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields batches and measures the time that the host waits for them.

    The clock starts here, so that the first interval excludes compilation.
    """
    self._restart_clock()
    self._progress.start_clock()
    iterator = iter(batches)
    while True:
      before = time.perf_counter()
      batch = next(iterator, None)
      self._waited += time.perf_counter() - before
      if batch is None:
        return
      yield batch

  def add(self, metrics: Mapping[str, jax.Array]) -> None:
    """Keeps the metrics of a step, which stay on the device."""
    self._metrics.append(metrics)

  def write_interval(self, step: int) -> None:
    """Waits for the steps up to `step`; logs and prints their means.

    Raises:
      NotFiniteError: If a loss or gradient is not finite, unless such steps are
        allowed; names the step.
      RunError: If the log cannot be written.
    """
    steps = jax.device_get(self._metrics)
    self._metrics = []
    seconds = time.perf_counter() - self._since
    values = {
        name: np.array([metrics[name] for metrics in steps], np.float64)
        for name in steps[0]
    }
    finite = values.pop('finite') > 0
    if not (self._skip or finite.all()):
      first = step - len(finite) + 1
      raise NotFiniteError(
          f'loss or gradient not finite at step {first + finite.argmin():,} '
          f'(seen when reading steps {first} to {step})'
      )
    entry = {
        'epoch': step * self._schedule.batch_size / self._schedule.num_examples
    }
    for name, value in values.items():
      if name in _LAST:
        entry[name] = float(value[-1])
      elif finite.any():
        entry[name] = float(value[finite].mean())
    if not finite.all():
      entry['skipped'] = int((~finite).sum())
    entry |= {
        'seconds': seconds,
        'images_per_second': len(finite) * self._schedule.batch_size / seconds,
        'data_wait': self._waited / seconds,
    }
    self.write('train', step, entry)
    self._progress.interval(step, entry)
    self._restart_clock()

  def write_epoch(self, step: int, scores: Mapping[str, Any]) -> None:
    """Logs and prints the epochs since the last validation, with new scores.

    Args:
      step: Last step of the epoch.
      scores: As `Setup.validate` returns them.

    Raises:
      RunError: If no step was finite, or the log cannot be written.
    """
    epoch = self._schedule.epoch_of(step)
    intervals, before = [], 0
    for entry in self.entries:
      if entry['kind'] == 'epoch':
        intervals = []
      else:
        intervals.append((entry['step'] - before, entry))
        before = entry['step']
    validated = [name for name in _VALIDATION if name in scores]
    entry = {
        'epoch': epoch,
        **_train_means(intervals, epoch),
        **{f'val_{name}': scores[name] for name in validated},
        'steps': sum(steps for steps, _ in intervals),
        'seconds': sum(entry['seconds'] for _, entry in intervals),
    }
    self.write('epoch', step, entry)
    self._progress.epoch(entry)
    self._restart_clock()  # Validation is not part of the next interval.

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds an entry of a kind: 'train' (an interval of steps) or 'epoch'.

    Raises:
      RunError: If it cannot be written, or the file was removed.
    """
    entry = {'kind': kind, 'step': step, **values}
    self.entries.append(entry)
    if not self._file:
      return
    line = f'{json.dumps(entry)}\n'.encode()
    try:
      if not os.fstat(self._file.fileno()).st_nlink:
        raise FileNotFoundError('it was removed')
      while line:  # A nearly full disk may take only a part.
        line = line[self._file.write(line) :]
    except OSError as error:
      raise RunError(
          f'cannot write {self._path} ({error.strerror or error}): the run '
          'ends; the same command resumes from the last checkpoint'
      ) from error
    self._events.write(kind, step, values)

  def close(self) -> None:
    """Closes the files."""
    if self._file:
      self._file.close()
      self._events.close()

  def _restart_clock(self):
    self._waited, self._since = 0.0, time.perf_counter()


class _Events:
  """A TensorBoard event file that is written synchronously.

  It replaces tensorboardX's `SummaryWriter`, whose thread ends when the disk is
  full, so that the run waits forever. Here the run continues without events.
  """

  def __init__(
      self, folder: pathlib.Path, *, step: int, warn: Callable[[str], None]
  ):
    """Opens a new file; voids events after `step` in earlier files."""
    # Imported here, so that --help does not wait for it.
    from tensorboardX import record_writer
    from tensorboardX.proto import event_pb2, summary_pb2

    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    self._warn, self._writer = warn, None
    name = f'events.out.tfevents.{time.time():.0f}.{socket.gethostname()}'
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    with self._sparing():
      folder.mkdir(exist_ok=True)
      # Not its `EventsWriter`, which cannot be closed when the disk is full.
      self._writer = record_writer.RecordWriter(str(folder / name))
      self._add(0, file_version='brain.Event:2')
      self._add(step + 1, session_log=start)

  def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
    """Adds scalars named `KIND/NAME`."""
    scalars = [
        self._summary.Value(tag=f'{kind}/{name}', simple_value=value)
        for name, value in values.items()
    ]
    with self._sparing():
      self._add(step, summary=self._summary(value=scalars))

  def close(self) -> None:
    """Closes the file."""
    if self._writer is not None:
      with self._sparing():
        self._writer.close()

  def _add(self, step, **fields):
    if self._writer is not None:
      event = self._event(wall_time=time.time(), step=step, **fields)
      self._writer.write(event.SerializeToString())
      self._writer.flush()

  @contextlib.contextmanager
  def _sparing(self):
    try:
      yield
    except OSError as error:
      writer, self._writer = self._writer, None
      with contextlib.suppress(OSError, AttributeError):
        writer.close()  # This tries to write once more.
      self._warn(
          f'no more TensorBoard events are written ({error.strerror}); '
          'metrics.jsonl has the same values'
      )


def read_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the entries of `metrics.jsonl`; other lines are passed over."""
  path = folder / 'metrics.jsonl'
  entries = []
  for line in path.read_bytes().splitlines() if path.exists() else ():
    with contextlib.suppress(ValueError, RecursionError):
      match entry := json.loads(line):
        case {'kind': 'train', 'step': int()} | {
            'kind': 'epoch',
            'step': int(),
            'epoch': int(),
        }:
          entries.append(entry)
  return entries


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
      for name in ('loss', 'accuracy', 'pixel_accuracy')
      if name in entries[0]
  }
  return {
      f'train_{name}': round(float(mean), _DIGITS)
      for name, mean in means.items()
  }
