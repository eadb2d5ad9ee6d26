"""The progress of a run on the terminal: speed, time left, the best epoch."""

from collections.abc import Mapping, Sequence
import time
from typing import Any

from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.terminal import duration, Terminal


class Progress:
  """Prints intervals of steps in the progress line, and epochs in lines."""

  def __init__(
      self,
      schedule: Any,
      terminal: Terminal,
      entries: Sequence[Mapping[str, Any]],
      *,
      start: int,
  ):
    """Begins now.

    Args:
      schedule: The run's `train.schedule.Schedule`.
      terminal: Where it is printed.
      entries: Those of the log so far, which know the best epoch.
      start: Updates made so far.
    """
    self._schedule, self._terminal = schedule, terminal
    self._start, self._began = start, time.perf_counter()
    self._skipped = sum(entry.get('skipped', 0) for entry in entries)
    self._best = None  # accuracy, epoch, whose weights
    for entry in entries:
      if entry['kind'] == 'epoch':
        self._compare(entry)

  def start_clock(self) -> None:
    """Starts the clock for the estimated time left."""
    self._began = time.perf_counter()

  def interval(self, step: int, entry: Mapping[str, Any]) -> None:
    """Prints the entry of an interval that ended after `step`."""
    self._skipped += entry.get('skipped', 0)
    text = 'no finite step'
    if 'loss' in entry:
      # Of mixed images it is counted against the class of the larger share.
      first = max(0, step - self._schedule.log_every_steps)
      mixed = first < self._schedule.mixed_steps
      counted = 'acc, dominant label' if mixed else 'acc'
      text = f'loss {entry["loss"]:.3f}  {counted} {entry["accuracy"]:.1%}'
    if self._skipped:
      text += f'  skipped {self._skipped}'
    schedule = self._schedule
    self._terminal.progress(
        f'epoch {schedule.epoch_of(step)}/{schedule.num_epochs}  '
        f'step {step:,}/{schedule.total_steps:,}  {text}  '
        f'{entry["images_per_second"]:.0f} img/s  '
        f'data {entry["data_wait"]:.0%}  ETA {duration(self._time_left(step))}'
    )

  def epoch(self, entry: Mapping[str, Any]) -> None:
    """Prints the entry of an epoch."""
    self._compare(entry)
    accuracy, best_epoch, whose = self._best
    ema = ''
    if 'val_ema_accuracy' in entry:
      ema = (
          f', EMA loss {entry["val_ema_loss"]:.3f}, accuracy '
          f'{entry["val_ema_accuracy"]:.2%}'
      )
    of_ema = ', EMA' if whose == raw_and_ema.EMA else ''
    self._terminal.say(
        f'epoch {entry["epoch"]}/{self._schedule.num_epochs} done in '
        f'{duration(entry["seconds"])}: train loss {entry["train_loss"]:.3f}, '
        f'validation loss {entry["val_loss"]:.3f}, accuracy '
        f'{entry["val_accuracy"]:.2%}{ema} (best {accuracy:.2%}, epoch '
        f'{best_epoch}{of_ema})'
    )

  def _compare(self, entry):
    accuracy, whose = raw_and_ema.better(entry, 'val_')
    found = accuracy, entry['epoch'], whose
    # Of equal accuracies the later epoch is the best.
    if self._best is None or found[:2] > self._best[:2]:
      self._best = found

  def _time_left(self, step):
    """Returns seconds to the end at the pace so far, validation included."""
    seconds = time.perf_counter() - self._began
    steps_left = self._schedule.stop_step - step
    return seconds / (step - self._start) * steps_left
