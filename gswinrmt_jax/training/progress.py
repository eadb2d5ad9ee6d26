"""The progress of a run: its line on the terminal, its entries in the log."""

from collections.abc import Mapping
import time
from typing import Any

import numpy as np

from gswinrmt_jax.training import average
from gswinrmt_jax.training import log as log_lib
from gswinrmt_jax.training.plan import Plan

_FIGURES = ('loss', 'smoothed_loss', 'accuracy', 'top5_accuracy')
# Of the weights, and of their average where one is kept.
_VALIDATION = (*_FIGURES, *(average.PREFIX + name for name in _FIGURES))


class Progress:
  """Tells and logs intervals of steps, and epochs."""

  def __init__(
      self,
      log: log_lib.MetricsLog,
      terminal: log_lib.Terminal,
      plan: Plan,
      *,
      start: int,
  ):
    """Begins now, after `start` steps; the log tells the best epoch so far."""
    self._log, self._terminal, self._plan = log, terminal, plan
    self._start = (start, time.perf_counter())
    self._intervals = []
    self._best = max(
        (
            (*average.better(entry, 'val_'), entry['epoch'])
            for entry in log.entries
            if entry['kind'] == 'epoch'
        ),
        key=_rank,
        default=(-1.0, average.RAW, 0),
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
      values: Metrics, one number a step.
      speed: `seconds`, `images_per_second`, `data_wait`.
      extra: Scalars as of this step.
    """
    means = {name: float(value.mean()) for name, value in values.items()}
    extra = {name: float(value) for name, value in extra.items()}
    epoch = step * self._plan.batch_size / self._plan.num_examples
    entry = {'epoch': epoch, **means, **extra, **speed}
    self._log.write('train', step, entry)
    self._intervals.append((len(values['loss']), entry))
    self._terminal.progress(
        f'epoch {self._plan.epoch_of(step)}/{self._plan.num_epochs}  '
        f'step {step}/{self._plan.total_steps}  '
        f'loss {means["loss"]:.3f}  acc {means["accuracy"]:.1%}  '
        f'{speed["images_per_second"]:.0f} img/s  '
        f'data {speed["data_wait"]:.0%}  '
        f'ETA {log_lib.duration(self._time_left(step))}'
    )

  def epoch(self, step: int, epoch: int, figures: Mapping[str, Any]) -> None:
    """Tells of the epochs since the last call, with the validation figures."""
    steps = [count for count, _ in self._intervals]
    train = {
        name: float(
            np.average([of[name] for _, of in self._intervals], weights=steps)
        )
        for name in ('loss', 'accuracy')
    }
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
            'steps': sum(steps),
            'seconds': seconds,
        },
    )
    found = (*average.better(figures), epoch)
    self._best = max(self._best, found, key=_rank)
    self._intervals = []
    accuracy, which, best_epoch = self._best
    ema = ''
    if 'ema_accuracy' in figures:
      ema = (
          f', EMA loss {figures["ema_loss"]:.3f}, accuracy '
          f'{figures["ema_accuracy"]:.2%}'
      )
    by = ', EMA' if which == average.EMA else ''
    self._terminal.say(
        f'epoch {epoch}/{self._plan.num_epochs} done in '
        f'{log_lib.duration(seconds)}: train loss {train["loss"]:.3f}, '
        f'validation loss {figures["loss"]:.3f}, accuracy '
        f'{figures["accuracy"]:.2%}{ema} (best {accuracy:.2%}, epoch '
        f'{best_epoch}{by})'
    )

  def _time_left(self, step):
    """Returns seconds to the end at the pace so far, validation included."""
    start, then = self._start
    seconds_per_step = (time.perf_counter() - then) / (step - start)
    return seconds_per_step * (self._plan.stop_step - step)


def _rank(best):
  """Orders by accuracy; of equal ones the later epoch is the best."""
  accuracy, _, epoch = best
  return accuracy, epoch
