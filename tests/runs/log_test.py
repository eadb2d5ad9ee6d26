"""Tests the metrics log: terminal lines, `metrics.jsonl` and TensorBoard files.

Means, speeds and remaining times are checked against values by hand.
"""

import dataclasses
import io
import json
import pathlib
import re
import resource
import struct
import time

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from gswinrmt_jax.errors import RunError
from gswinrmt_jax.runs import metrics_log as log
from gswinrmt_jax.runs import progress, writers
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import schedule as schedule_lib

SCHEDULE = schedule_lib.Schedule(
    num_examples=10,
    batch_size=4,
    num_epochs=6,
    stop_after_epochs=6,
    eval_every_epochs=1,
    log_every_steps=5,
)


def _open(folder, step=0, stream=None, **how):
  folder.mkdir(exist_ok=True)
  terminal = Terminal(stream or io.StringIO())
  return log.MetricsLog(
      folder, step=step, schedule=SCHEDULE, terminal=terminal, **how
  )


def _write(folder, steps, *, start):
  """Writes entries after those up to `start`; returns all."""
  found = _open(folder, start)
  for step in steps:
    _add(found, step)
  found.close()
  return found.entries


def _add(found, step):
  """Adds the entry of an interval, which says nothing but its loss."""
  found.add({'loss': step / 4, 'finite': True})
  found.write_interval(step)


def test_a_resumed_log_counts_nothing_twice(tmp_path):
  _write(tmp_path, (2, 4, 6, 8), start=0)
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"kind": "train", "st')  # killed while writing
  entries = _write(tmp_path, (6, 7), start=4)
  assert [entry['step'] for entry in entries] == [2, 4, 6, 7]
  assert log.read_metrics(tmp_path) == entries
  assert (
      entries[-1].items() > {'kind': 'train', 'step': 7, 'loss': 1.75}.items()
  )
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line) for line in lines] == entries
  assert list((tmp_path / 'tensorboard').glob('events.*'))
  assert _write(tmp_path, (), start=0) == []  # a run that starts anew


@pytest.mark.parametrize(
    'tail', [b'{"kind": "epo', b'\0\0\0\0', b'\xff{', b'\n\n']
)
def test_whatever_a_crash_leaves_at_the_end_is_dropped(tmp_path, tail):
  entries = _write(tmp_path, (2, 4), start=0)
  with (tmp_path / 'metrics.jsonl').open('ab') as file:
    file.write(tail)
  assert log.read_metrics(tmp_path) == entries
  *before, last = _write(tmp_path, (6,), start=4)
  assert before == entries and last['step'] == 6
  assert len((tmp_path / 'metrics.jsonl').read_text().splitlines()) == 3


def test_a_log_whose_place_another_run_has_taken_is_missed(tmp_path):
  (folder := tmp_path / 'run').mkdir()
  found = _open(folder)
  _add(found, 1)
  folder.rename(tmp_path / 'moved')
  folder.mkdir()
  (folder / 'metrics.jsonl').write_text('')
  with pytest.raises(RunError, match=r'cannot write .*it was removed or moved'):
    _add(found, 2)
  found.close()
  assert (folder / 'metrics.jsonl').read_text() == ''


def test_a_full_disk_ends_the_run_in_one_line(tmp_path):
  found = _open(tmp_path)
  _add(found, 1)
  # A limit on the file size leaves room for three bytes of the next line.
  size = (tmp_path / 'metrics.jsonl').stat().st_size + 3
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    with pytest.raises(RunError, match=r'cannot write .*File too large'):
      _add(found, 2)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  found.close()
  assert (tmp_path / 'metrics.jsonl').stat().st_size == size
  assert [entry['step'] for entry in log.read_metrics(tmp_path)] == [1]


# TensorBoard.


def _read(path):
  """Returns the events of a file.

  A record is length, checksum, event, checksum.
  """
  found, data = [], path.read_bytes()
  while data:
    (length,) = struct.unpack('<Q', data[:8])
    found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
    data = data[16 + length :]
  return found


def test_what_is_written_can_be_read_before_it_is_closed(tmp_path):
  """Two starts in one second have a file each."""
  starts = [
      writers.TensorBoard(tmp_path, step=step, warn=pytest.fail)
      for step in (0, 4)
  ]
  starts[1].write({'kind': 'train', 'step': 7, 'loss': 0.25, 'accuracy': 1})
  files = sorted(tmp_path.glob('events.*'))
  starts[0].write({'kind': 'train', 'step': 1, 'loss': 0.5})
  (*_, other), (version, start, scalars) = map(_read, files)
  assert other.step == 1
  assert version.file_version == 'brain.Event:2'
  assert start.step == 5  # voids later events of an earlier start
  assert start.session_log.status == start.session_log.START
  assert scalars.step == 7
  assert {value.tag: value.simple_value for value in scalars.summary.value} == {
      'train/loss': 0.25,
      'train/accuracy': 1.0,
  }
  for file in starts:
    file.close()


@pytest.mark.skipif(
    not pathlib.Path('/dev/full').exists(), reason='needs /dev/full'
)
def test_a_full_disk_is_told_once_and_the_run_goes_on(tmp_path, monkeypatch):
  from tensorboardX import record_writer

  monkeypatch.setattr(
      record_writer, 'open_file', lambda path: open('/dev/full', 'wb')
  )
  warned = []
  file = writers.TensorBoard(tmp_path / 'events', step=0, warn=warned.append)
  for step in range(100):
    file.write({'kind': 'train', 'step': step, 'loss': 0.25})
  file.close()
  (line,) = warned
  assert 'No space left on device' in line and 'metrics.jsonl' in line


def test_a_log_of_another_process_has_the_entries_and_writes_none(tmp_path):
  _write(tmp_path, [1, 2, 3], start=0)
  before = _sizes_and_times(tmp_path)
  silent = _open(tmp_path, 2, read_only=True)
  _add(silent, 3)
  silent.close()
  assert [entry['step'] for entry in silent.entries] == [1, 2, 3]
  assert _sizes_and_times(tmp_path) == before


def _sizes_and_times(folder):
  found = {path: path.stat() for path in folder.rglob('*')}
  return {path: (s.st_size, s.st_mtime_ns) for path, s in found.items()}


# Intervals and epochs.


def _figures(accuracy, prefix=''):
  figures = {
      'loss': 0.5,
      'smoothed_loss': 0.6,
      'accuracy': accuracy,
      'top5_accuracy': 1.0,
  }
  return {prefix + name: value for name, value in figures.items()}


def _interval(found, step, losses, rate=0.25):
  for loss in losses:
    loss = jnp.float32(loss)
    found.add(
        {
            'loss': loss,
            'accuracy': loss / 8,
            'learning_rate': jnp.float32(rate),
            'finite': jnp.isfinite(loss),
        }
    )
  found.write_interval(step)


def test_intervals_and_epochs_are_logged_and_told(tmp_path):
  found = _open(tmp_path, stream=(stream := io.StringIO()))
  _interval(found, 2, [2.0, 4.0], rate=0.5)
  _interval(found, 3, [6.0])
  found.write_epoch(3, _figures(0.5))
  found.close()
  first, second, third = stream.getvalue().splitlines()
  assert re.fullmatch(
      r'epoch 1/6  step 2/15  loss 3\.000  acc 37\.5%  lr 5\.0e-1  '
      r'[\d,]+ img/s  ETA \S+  elapsed \S+',
      first,
  )
  assert second.startswith('epoch 2/6  step 3/15')
  assert third.startswith('epochs 1-2/6 in ')
  assert third.endswith(': loss 4.000, val loss 0.500, val acc 50.00% (best)')
  interval, _, epoch = found.entries
  assert interval['epoch'] == 0.8 and interval['learning_rate'] == 0.5
  # The mean over steps, not over intervals: (2 + 4 + 6) / 3.
  assert epoch['train_loss'] == 4.0 and epoch['steps'] == 3
  assert epoch['val_accuracy'] == 0.5
  seconds = sum(entry['seconds'] for entry in found.entries[:2])
  assert epoch['seconds'] == pytest.approx(seconds)
  assert log.read_metrics(tmp_path) == found.entries


def test_speed_and_the_wait_for_data_are_logged(tmp_path):
  def batches():
    for step in (1, 2):
      time.sleep(0.01)
      yield step

  found = _open(tmp_path)
  time.sleep(0.05)  # Compilation is not part of an interval.
  for _ in found.clock.timing(batches()):
    found.add({'loss': 1.0, 'accuracy': 0.5, 'finite': True})
  found.write_interval(2)
  found.close()
  (entry,) = found.entries
  assert entry['images_per_second'] == pytest.approx(2 * 4 / entry['seconds'])
  assert 0.02 / entry['seconds'] <= entry['data_wait'] <= 1


def _shown(elapsed, entries, schedule=SCHEDULE, start=0):
  """Returns the progress lines of intervals that end at these steps."""
  times, stream = iter(elapsed), io.StringIO()
  shown = progress.Progress(
      schedule, Terminal(stream), [], lambda: next(times), start=start
  )
  for step, entry in entries:
    shown.write({'kind': 'train', 'step': step, 'data_wait': 0.0, **entry})
  return stream.getvalue().splitlines()


def test_a_narrow_terminal_shows_what_matters(monkeypatch):
  """Not the elapsed time, nor the number of all steps."""
  seen = []
  monkeypatch.setattr(
      Terminal, 'progress', lambda self, *texts: seen.append(texts)
  )
  entry = {
      'seconds': 1.0,
      'images_per_second': 9.0,
      'loss': 6.931,
      'accuracy': 0.125,
      'learning_rate': 1e-3,
  }
  _shown([4.0], [(2, entry)])
  (texts,) = seen
  rest = 'loss 6.931  acc 12.5%  lr 1.0e-3  9 img/s  ETA 26s'
  assert texts == (
      f'epoch 1/6  step 2/15  {rest}  elapsed 4.0s',
      f'epoch 1/6  step 2  {rest}'.replace('  ', ' '),
  )


def test_the_time_left_is_that_of_several_intervals():
  """2 steps in 4 s leave 26 s for the other 13; 3 in 9 s, 36 s for 12.

  A long wait for data is shown.
  """
  waits = {'images_per_second': 400.0, 'data_wait': 0.25}
  first, second = _shown(
      [4.0, 9.0], [(2, {'images_per_second': 40.0}), (3, waits)]
  )
  assert first.endswith('  40 img/s  ETA 26s  elapsed 4.0s')
  assert second.endswith('  400 img/s  ETA 36s  data wait 25%  elapsed 9.0s')


def test_the_time_left_is_of_the_steps_of_this_start():
  """From step 2, to epoch 3 of 6: 2 steps in 4 s leave 6 s for the other 3."""
  schedule = dataclasses.replace(SCHEDULE, stop_after_epochs=3)
  assert schedule.stop_step == 7 < schedule.total_steps
  entry = {'seconds': 1.0, 'images_per_second': 40.0}
  (shown,) = _shown([4.0], [(4, entry)], schedule, start=2)
  assert '  ETA 6.0s  ' in shown


def test_the_accuracy_on_mixed_images_is_called_so():
  """Mixing ends after 2 of 6 epochs, at step 5; an interval has 3 steps."""
  schedule = dataclasses.replace(SCHEDULE, log_every_steps=3, mixed_epochs=2)
  entry = {'accuracy': 0.5, 'seconds': 1.0, 'images_per_second': 9.0}
  first, across, last = _shown(
      [1.0, 2.0, 3.0], [(step, entry) for step in (3, 6, 9)], schedule
  )
  assert '  mixed acc 50.0%' in first and '  mixed acc 50.0%' in across
  assert '  acc 50.0%' in last


def test_the_best_epoch_is_remembered_and_of_equal_ones_the_later(tmp_path):
  found = _open(tmp_path)
  for step, accuracy in ((2, 0.75), (5, 0.75)):
    _interval(found, step, [1.0])
    found.write_epoch(step, _figures(accuracy))
  found.close()
  found = _open(tmp_path, 5, stream=(stream := io.StringIO()))
  _interval(found, 7, [1.0])
  found.write_epoch(7, _figures(0.5))
  found.close()
  assert '(best 75.00%, epoch 2)' in stream.getvalue()


def test_an_epoch_without_a_finite_loss_is_not_the_best(tmp_path):
  found = _open(tmp_path, stream=(stream := io.StringIO()))
  _interval(found, 2, [1.0])
  found.write_epoch(2, _figures(0.5) | {'loss': float('nan')})
  found.close()
  assert stream.getvalue().endswith('(no finite loss yet)\n')


def test_the_average_is_told_beside_and_may_be_the_best(tmp_path):
  found = _open(tmp_path, stream=(stream := io.StringIO()))
  for step, raw, ema in ((2, 0.25, 0.75), (5, 0.5, 0.25)):
    _interval(found, step, [1.0])
    found.write_epoch(step, _figures(raw) | _figures(ema, 'ema_'))
  found.close()
  lines = stream.getvalue().splitlines()
  assert lines[1].endswith(
      'val acc 25.00%, EMA val loss 0.500, val acc 75.00% (best 75.00%, epoch '
      '1, EMA)'
  )
  assert lines[3].endswith('val acc 25.00% (best 75.00%, epoch 1, EMA)')
  entry = found.entries[-1]
  assert entry['val_ema_accuracy'] == 0.25 and entry['val_accuracy'] == 0.5


@pytest.mark.parametrize('cuts', [(4,), (3, 4), (3, 5)])
def test_an_epoch_has_the_same_means_wherever_its_intervals_are_cut(
    tmp_path, cuts
):
  """A checkpoint or a stop may cut an interval."""
  losses = {3: 1 / 3, 4: 2 / 7, 5: 6.1}
  entries = []
  for name, steps in (('whole', (5,)), ('cut', sorted({*cuts, 5}))):
    found = _open(tmp_path / name)
    _interval(found, 2, [9.0, 9.0])
    found.write_epoch(2, _figures(0.5))
    before = 2
    for step in steps:
      found.close()
      found = _open(tmp_path / name, before)
      _interval(found, step, [losses[s] for s in range(before + 1, step + 1)])
      before = step
    found.write_epoch(5, _figures(0.5))
    found.close()
    entries.append({**found.entries[-1], 'seconds': 0})
  assert entries[0] == entries[1] and entries[0]['steps'] == 3
  mean = np.mean([float(np.float32(loss)) for loss in losses.values()])
  assert entries[0]['train_loss'] == pytest.approx(mean, abs=1e-8)


def test_the_step_that_is_not_finite_is_named(tmp_path):
  found = _open(tmp_path)
  with pytest.raises(RunError, match=r'at step 12 .*steps 11 to 13'):
    _interval(found, 13, [1.0, jnp.inf, jnp.nan])
  found.close()


def test_steps_that_were_skipped_are_counted_and_have_no_say(tmp_path):
  found = _open(tmp_path, stream=(stream := io.StringIO()), skip_nonfinite=True)
  _interval(found, 2, [np.nan, np.inf])
  _interval(found, 5, [2.0, np.nan, 4.0])
  found.close()
  # The count continues after a restart.
  found = _open(tmp_path, 5, stream=(again := io.StringIO()))
  _interval(found, 6, [9.0])
  found.write_epoch(6, _figures(0.5))
  found.close()
  none, some, all_, epoch = found.entries
  assert none['skipped'] == 2 and 'loss' not in none
  assert some['skipped'] == 1 and some['loss'] == 3.0
  assert 'skipped' not in all_
  assert epoch['train_loss'] == 5.0 and epoch['steps'] == 6
  lines = stream.getvalue().splitlines()
  assert 'no finite step  skipped 2' in lines[0]
  assert 'loss 3.000  acc 37.5%  skipped 3  lr ' in lines[1]
  assert 'skipped 3' in again.getvalue()


def test_an_epoch_without_a_finite_step_ends_the_run(tmp_path):
  found = _open(tmp_path, skip_nonfinite=True)
  _interval(found, 2, [np.nan, np.inf])
  with pytest.raises(RunError, match='no step of epoch 1 had a finite loss'):
    found.write_epoch(2, _figures(0.5))
  found.close()
  assert [entry['kind'] for entry in found.entries] == ['train']
