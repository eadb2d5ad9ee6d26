"""The progress line, and the epoch's entry in the log."""

import io

import numpy as np
import pytest

from gswinrmt_jax.errors import RunError
from gswinrmt_jax.runs import metrics_log as log_lib
from gswinrmt_jax.runs import progress as progress_lib
from gswinrmt_jax.train import schedule as plan_lib

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
  losses = np.array(losses)
  values = {
      'loss': losses,
      'accuracy': losses / 8,
      'finite': np.isfinite(losses),
  }
  progress.interval(step, values, SPEED, {'learning_rate': 0.25})


def _start(folder, step=0):
  folder.mkdir(exist_ok=True)
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


def test_an_epoch_that_was_begun_goes_on_from_the_log(tmp_path):
  """Its means are over all of its steps, those of before the restart too."""
  progress, log, _ = _start(tmp_path / 'unbroken')
  for step, losses in ((2, [9.0, 9.0]), (4, [1.0, 2.0]), (5, [6.0])):
    _interval(progress, step, losses)
    if step == 2:
      progress.epoch(2, 1, _figures(0.5))
  progress.epoch(5, 2, _figures(0.5))
  log.close()
  unbroken = log.entries

  for step, losses in ((2, [9.0, 9.0]), (4, [1.0, 2.0])):
    progress, log, _ = _start(tmp_path / 'cut', step=step - 2)
    _interval(progress, step, losses)
    if step == 2:
      progress.epoch(2, 1, _figures(0.5))
    log.close()
  progress, log, _ = _start(tmp_path / 'cut', step=4)
  _interval(progress, 5, [6.0])
  progress.epoch(5, 2, _figures(0.5))
  log.close()
  assert log.entries == unbroken
  assert unbroken[-1]['train_loss'] == 3.0 and unbroken[-1]['steps'] == 3


def test_steps_that_were_skipped_are_counted_and_have_no_say(tmp_path):
  progress, log, stream = _start(tmp_path)
  _interval(progress, 2, [np.nan, np.inf])
  _interval(progress, 5, [2.0, np.nan, 4.0])
  log.close()
  # Counted on over a restart.
  progress, log, again = _start(tmp_path, step=5)
  _interval(progress, 6, [9.0])
  progress.epoch(6, 1, _figures(0.5))
  log.close()
  none, some, all_, epoch = log.entries
  assert none['skipped'] == 2 and 'loss' not in none
  assert some['skipped'] == 1 and some['loss'] == 3.0
  assert 'skipped' not in all_ and progress.skipped == 3
  assert epoch['train_loss'] == 5.0 and epoch['steps'] == 6
  lines = stream.getvalue().splitlines()
  assert 'no finite step  skipped 2' in lines[0]
  assert 'loss 3.000  acc 37.5%  skipped 3' in lines[1]
  assert 'skipped 3' in again.getvalue()


def test_an_epoch_without_a_finite_step_ends_the_run(tmp_path):
  progress, log, _ = _start(tmp_path)
  _interval(progress, 2, [np.nan, np.inf])
  with pytest.raises(RunError, match='no step of epoch 1 had a finite loss'):
    progress.epoch(2, 1, _figures(0.5))
  log.close()
  assert [entry['kind'] for entry in log.entries] == ['train']
