"""The progress of a run: its line on the terminal, its entries in the log."""

from collections.abc import Mapping
import time
from typing import Any

import numpy as np

from gswinrmt_jax.checkpoints import raw_and_ema
from gswinrmt_jax.errors import RunError
from gswinrmt_jax.runs import metrics_log as log_lib
from gswinrmt_jax.train.schedule import Plan

_FIGURES = ('loss', 'smoothed_loss', 'accuracy', 'top5_accuracy')
# Of the weights, and of their average where one is kept.
_VALIDATION = (*_FIGURES, *(raw_and_ema.PREFIX + name for name in _FIGURES))


class Progress:
  """Tells and logs intervals of steps, and epochs.

  Attributes:
    skipped: Steps so far that were not finite and changed nothing.
  """

  def __init__(
      self,
      log: log_lib.MetricsLog,
      terminal: log_lib.Terminal,
      plan: Plan,
      *,
      start: int,
  ):
    """Begins now, after `start` steps.

    The log tells the best epoch so far, and what there is of one that was
    begun.
    """
    self._log, self._terminal, self._plan = log, terminal, plan
    self._start = (start, time.perf_counter())
    self.skipped, self._intervals, before = 0, [], 0
    for entry in log.entries:
      if entry['kind'] == 'epoch':
        self._intervals = []
      else:
        self._count(entry, entry['step'] - before)
        before = entry['step']
    self._best = max(
        (
            (*raw_and_ema.better(entry, 'val_'), entry['epoch'])
            for entry in log.entries
            if entry['kind'] == 'epoch'
        ),
        key=_rank,
        default=(-1.0, raw_and_ema.RAW, 0),
    )

  def interval(
      self,
      step: int,
      values: Mapping[str, np.ndarray],
      speed: Mapping[str, float],
      extra: Mapping[str, Any],
  ) -> None:
    """Tells of the steps since the last call.

    Args:
      step: Updates made so far.
      values: Metrics, one number a step; `finite` tells which were updates.
      speed: `seconds`, `images_per_second`, `data_wait`.
      extra: Scalars as of this step.
    """
    values = dict(values)
    finite = values.pop('finite') > 0
    means = {
        name: float(value[finite].mean())
        for name, value in values.items()
        if finite.any()
    }
    if not finite.all():
      means['skipped'] = int((~finite).sum())
    extra = {name: float(value) for name, value in extra.items()}
    epoch = step * self._plan.batch_size / self._plan.num_examples
    entry = {'epoch': epoch, **means, **extra, **speed}
    self._log.write('train', step, entry)
    self._count(entry, len(finite))
    told = 'no finite step'
    if finite.any():
      told = f'loss {means["loss"]:.3f}  acc {means["accuracy"]:.1%}'
    if self.skipped:
      told += f'  skipped {self.skipped}'
    self._terminal.progress(
        f'epoch {self._plan.epoch_of(step)}/{self._plan.num_epochs}  '
        f'step {step}/{self._plan.total_steps}  {told}  '
        f'{speed["images_per_second"]:.0f} img/s  '
        f'data {speed["data_wait"]:.0%}  '
        f'ETA {log_lib.duration(self._time_left(step))}'
    )

  def epoch(self, step: int, epoch: int, figures: Mapping[str, Any]) -> None:
    """Tells of the epochs since the last call, with the validation figures.

    Raises:
      RunError: If none of their steps was finite.
    """
    train = self._train_figures(epoch)
    seconds = sum(entry['seconds'] for _, entry in self._intervals)
    self._log.write(
        'epoch',
        step,
        {
            'epoch': epoch,
            'train_loss': train['loss'],
            'train_accuracy': train['accuracy'],
            **{
                f'val_{name}': figures[name]
                for name in _VALIDATION
                if name in figures
            },
            'steps': sum(steps for steps, _ in self._intervals),
            'seconds': seconds,
        },
    )
    found = (*raw_and_ema.better(figures), epoch)
    self._best = max(self._best, found, key=_rank)
    self._intervals = []
    accuracy, which, best_epoch = self._best
    ema = ''
    if 'ema_accuracy' in figures:
      ema = (
          f', EMA loss {figures["ema_loss"]:.3f}, accuracy '
          f'{figures["ema_accuracy"]:.2%}'
      )
    by = ', EMA' if which == raw_and_ema.EMA else ''
    self._terminal.say(
        f'epoch {epoch}/{self._plan.num_epochs} done in '
        f'{log_lib.duration(seconds)}: train loss {train["loss"]:.3f}, '
        f'validation loss {figures["loss"]:.3f}, accuracy '
        f'{figures["accuracy"]:.2%}{ema} (best {accuracy:.2%}, epoch '
        f'{best_epoch}{by})'
    )

  def _count(self, entry, steps):
    self._intervals.append((steps, entry))
    self.skipped += entry.get('skipped', 0)

  def _train_figures(self, epoch):
    """Returns the means over the updates of the epoch."""
    updates = [
        (steps - entry.get('skipped', 0), entry)
        for steps, entry in self._intervals
        if 'loss' in entry
    ]
    if not updates:
      raise RunError(
          f'no step of epoch {epoch} had a finite loss and gradient: try a '
          'lower config.optimizer.learning_rate or config.dtype=float32'
      )
    weights = [count for count, _ in updates]
    return {
        name: float(
            np.average([of[name] for _, of in updates], weights=weights)
        )
        for name in ('loss', 'accuracy')
    }

  def _time_left(self, step):
    """Returns seconds to the end at the pace so far, validation included."""
    start, then = self._start
    seconds_per_step = (time.perf_counter() - then) / (step - start)
    return seconds_per_step * (self._plan.stop_step - step)


def _rank(best):
  """Orders by accuracy; of equal ones the later epoch is the best."""
  accuracy, _, epoch = best
  return accuracy, epoch
