"""The progress of a run on the terminal: speed, time left, the best epoch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gswinrmt_jax.checkpoints.raw_and_ema import EMA
from gswinrmt_jax.runs.scores import best_epoch, SCORES
from gswinrmt_jax.terminal import duration, Terminal

_SLOW_DATA = 0.1  # share of the time spent waiting for data that is reported


class Progress:
  """Shows intervals in the progress line, and each epoch in its own line."""

  def __init__(
      self,
      schedule: Any,
      terminal: Terminal,
      entries: Sequence[Mapping[str, Any]],
      elapsed: Callable[[], float],
      *,
      start: int,
  ):
    """Shows nothing yet.

    Args:
      schedule: The run's `train.schedule.Schedule`.
      terminal: Where progress is shown.
      entries: The log so far, which determines the best epoch.
      elapsed: Returns the seconds since the first step.
      start: Number of updates already made.
    """
    self._schedule, self._terminal = schedule, terminal
    self._elapsed, self._start = elapsed, start
    self._skipped = sum(entry.get('skipped', 0) for entry in entries)
    self._epochs = [entry for entry in entries if entry['kind'] == 'epoch']

  def write(self, entry: Mapping[str, Any]) -> None:
    """Shows an entry."""
    if entry['kind'] == 'epoch':
      self._show_epoch(entry)
    else:
      self._show_interval(entry)

  def _show_interval(self, entry):
    schedule, step = self._schedule, entry['step']
    self._skipped += entry.get('skipped', 0)
    epoch = f'epoch {schedule.epoch_of(step)}/{schedule.num_epochs}'
    number = f'step {step:,}'
    loss = f'loss {entry["loss"]:.3f}' if 'loss' in entry else 'no finite step'
    parts = [loss]
    if 'accuracy' in entry:
      # For mixed images, the class with the larger share counts as correct.
      first = max(0, step - schedule.log_every_steps)
      counted = 'mixed acc' if first < schedule.mixed_steps else 'acc'
      parts.append(f'{counted} {entry["accuracy"]:.1%}')
    elif 'pixel_accuracy' in entry:
      parts.append(f'pixel acc {entry["pixel_accuracy"]:.1%}')
    elif 'positives' in entry:
      parts.append(f'positives {entry["positives"]:.0f}')
    if self._skipped:
      parts.append(f'skipped {self._skipped}')
    if 'learning_rate' in entry:
      rate = f'{entry["learning_rate"]:.1e}'.replace('e-0', 'e-')
      parts.append(f'lr {rate}')
    parts.append(f'{entry["images_per_second"]:,.0f} img/s')
    elapsed = self._elapsed()
    left = elapsed / (step - self._start) * (schedule.stop_step - step)
    parts.append(f'ETA {duration(left)}')
    if entry['data_wait'] >= _SLOW_DATA:
      parts.append(f'data wait {entry["data_wait"]:.0%}')
    long = [epoch, f'{number}/{schedule.total_steps:,}', *parts]
    self._terminal.progress(
        '  '.join([*long, f'elapsed {duration(elapsed)}']),
        ' '.join([epoch, number, *parts]),
    )

  def _show_epoch(self, entry):
    self._epochs.append(entry)
    best, epoch, whose = best_epoch(self._epochs)
    average = any(name.startswith('val_ema_') for name in entry)
    ema = f', EMA {_scores(entry, "val_ema_")}' if average else ''
    last = entry['epoch']
    first = self._epochs[-2]['epoch'] + 1 if self._epochs[1:] else 1
    epochs = f'epochs {first}-{last}' if first < last else f'epoch {last}'
    said = 'best'
    if best < 0:
      said = 'no finite loss yet'
    elif epoch != entry['epoch'] or ema:
      said += f' {best:.2%}, epoch {epoch}'
      said += ', EMA' if whose == EMA else ''
    self._terminal.say(
        f'{epochs}/{self._schedule.num_epochs} in '
        f'{duration(entry["seconds"])}: loss {entry["train_loss"]:.3f}, '
        f'{_scores(entry, "val_")}{ema} ({said})'
    )


def _scores(entry, prefix):
  """Returns the validation scores of an epoch, the decisive one first."""
  shares = [
      f'{"val acc" if name == "accuracy" else score.label} '
      f'{entry[prefix + name]:{score.form}}'
      for name, score in SCORES.items()
      if score.shown and prefix + name in entry
  ]
  loss = f'{prefix}loss'  # A detector has none.
  losses = [f'val loss {entry[loss]:.3f}'] if loss in entry else []
  return ', '.join([*losses, *shares])
