"""The progress line, and the epoch's entry in the log."""

import io

import numpy as np
import pytest

from gswinrmt_jax.training import log as log_lib
from gswinrmt_jax.training import plan as plan_lib
from gswinrmt_jax.training import progress as progress_lib

PLAN = plan_lib.Plan(
    num_examples=10,
    batch_size=4,
    num_epochs=6,
    stop_after_epochs=6,
    eval_every_epochs=1,
    log_every_steps=5,
)
SPEED = {'seconds': 2.0, 'images_per_second': 812.4, 'data_wait': 0.031}


def _figures(accuracy):
  return {
      'loss': 0.5,
      'smoothed_loss': 0.6,
      'accuracy': accuracy,
      'top5_accuracy': 1.0,
  }


def _interval(progress, step, losses):
  values = {'loss': np.array(losses), 'accuracy': np.array(losses) / 8}
  progress.interval(step, values, SPEED, {'learning_rate': 0.25})


def _start(folder, step=0):
  stream = io.StringIO()
  log = log_lib.MetricsLog(folder, step=step)
  terminal = log_lib.Terminal(stream)
  return progress_lib.Progress(log, terminal, PLAN, start=step), log, stream


def test_lines_and_entries(tmp_path, monkeypatch):
  clock = iter((90.0, 94.0, 99.0))
  monkeypatch.setattr(progress_lib.time, 'perf_counter', lambda: next(clock))
  progress, log, stream = _start(tmp_path)
  _interval(progress, 2, [2.0, 4.0])
  _interval(progress, 3, [6.0])
  progress.epoch(3, 1, _figures(0.5))
  log.close()
  first, second, third = stream.getvalue().splitlines()
  # Two steps in 4 seconds, 13 to go; three in 9, 12 to go.
  assert first == (
      'epoch 1/6  step 2/15  loss 3.000  acc 37.5%  812 img/s  data 3%  ETA 26s'
  )
  assert second.startswith('epoch 2/6  step 3/15') and 'ETA 36s' in second
  assert third == (
      'epoch 1/6 done in 4.0s: train loss 4.000, validation loss 0.500, '
      'accuracy 50.00% (best 50.00%, epoch 1)'
  )
  interval, _, epoch = log.entries
  assert interval['epoch'] == 0.8 and interval['learning_rate'] == 0.25
  # The mean over steps, not over intervals: (2 + 4 + 6) / 3.
  assert epoch['train_loss'] == 4.0 and epoch['steps'] == 3
  assert epoch['seconds'] == 4.0 and epoch['val_accuracy'] == 0.5


def test_the_best_is_remembered_over_a_restart(tmp_path):
  progress, log, _ = _start(tmp_path)
  _interval(progress, 2, [1.0])
  progress.epoch(2, 1, _figures(0.75))
  log.close()
  progress, log, stream = _start(tmp_path, step=2)
  _interval(progress, 5, [1.0])
  progress.epoch(5, 2, _figures(0.5))
  log.close()
  assert '(best 75.00%, epoch 1)' in stream.getvalue()


def test_of_equal_accuracies_the_later_is_best(tmp_path):
  progress, log, stream = _start(tmp_path)
  for epoch, step in ((1, 2), (2, 5)):
    _interval(progress, step, [1.0])
    progress.epoch(step, epoch, _figures(0.5))
  log.close()
  assert stream.getvalue().count('(best 50.00%, epoch 2)') == 1


def test_the_average_is_told_beside_and_may_be_the_best(tmp_path):
  progress, log, stream = _start(tmp_path)
  for step, epoch, raw, ema in ((2, 1, 0.25, 0.75), (5, 2, 0.5, 0.25)):
    averaged = {f'ema_{name}': of for name, of in _figures(ema).items()}
    _interval(progress, step, [1.0])
    progress.epoch(step, epoch, {**_figures(raw), **averaged})
  log.close()
  lines = stream.getvalue().splitlines()
  assert lines[1].endswith(
      'accuracy 25.00%, EMA loss 0.500, accuracy 75.00% (best 75.00%, epoch 1, '
      'EMA)'
  )
  assert lines[3].endswith('accuracy 25.00% (best 75.00%, epoch 1, EMA)')
  entry = log.entries[-1]
  assert entry['val_ema_accuracy'] == 0.25 and entry['val_accuracy'] == 0.5
  assert entry['val_ema_smoothed_loss'] == 0.6
  # A restart reads it from the log.
  progress, log, stream = _start(tmp_path, step=5)
  _interval(progress, 7, [1.0])
  progress.epoch(7, 3, _figures(0.5))
  log.close()
  assert stream.getvalue().endswith('(best 75.00%, epoch 1, EMA)\n')


@pytest.mark.parametrize(('step', 'epoch'), [(2, 1), (3, 2), (5, 2), (15, 6)])
def test_the_epoch_of_a_step(tmp_path, step, epoch):
  progress, log, stream = _start(tmp_path)
  _interval(progress, step, [1.0])
  log.close()
  assert stream.getvalue().startswith(f'epoch {epoch}/6  step {step}/15')
