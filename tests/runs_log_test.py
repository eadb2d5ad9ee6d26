"""The metrics log, `metrics.jsonl` and TensorBoard event files."""

import json
import pathlib
import resource
import shutil
import struct

import pytest
from tensorboardX.proto import event_pb2

from gswinrmt_jax.errors import RunError
from gswinrmt_jax.runs import metrics_log as log


def _write(folder, steps, *, start):
  metrics_log = log.MetricsLog(folder, step=start)
  for step in steps:
    metrics_log.write('train', step, {'loss': step / 4})
  metrics_log.close()
  return metrics_log.entries


def test_a_resumed_log_counts_nothing_twice(tmp_path):
  _write(tmp_path, (2, 4, 6, 8), start=0)
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"kind": "train", "st')  # killed while writing
  entries = _write(tmp_path, (6, 7), start=4)
  assert [entry['step'] for entry in entries] == [2, 4, 6, 7]
  assert log.read_metrics(tmp_path) == entries
  assert entries[-1] == {'kind': 'train', 'step': 7, 'loss': 1.75}
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line) for line in lines] == entries
  assert list((tmp_path / 'tensorboard').glob('events.*'))


@pytest.mark.parametrize(
    'tail', [b'{"kind": "epo', b'\0\0\0\0', b'\xff{', b'3\n', b'\n\n']
)
def test_whatever_a_crash_leaves_at_the_end_is_dropped(tmp_path, tail):
  entries = _write(tmp_path, (2, 4), start=0)
  with (tmp_path / 'metrics.jsonl').open('ab') as file:
    file.write(tail)
  assert log.read_metrics(tmp_path) == entries
  assert _write(tmp_path, (6,), start=4) == [
      *entries,
      {'kind': 'train', 'step': 6, 'loss': 1.5},
  ]
  assert len((tmp_path / 'metrics.jsonl').read_text().splitlines()) == 3


def test_a_log_that_was_removed_is_missed(tmp_path):
  metrics_log = log.MetricsLog(tmp_path, step=0)
  metrics_log.write('train', 1, {'loss': 0.5})
  shutil.rmtree(tmp_path)
  with pytest.raises(RunError, match=r'cannot write .*it was removed'):
    metrics_log.write('train', 2, {'loss': 0.5})
  metrics_log.close()


def test_a_full_disk_ends_the_run_in_one_line(tmp_path):
  metrics_log = log.MetricsLog(tmp_path, step=0)
  metrics_log.write('train', 1, {'loss': 0.5})
  # By a limit on the size of files: three bytes of the next line fit.
  size = (tmp_path / 'metrics.jsonl').stat().st_size + 3
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    with pytest.raises(RunError, match=r'cannot write .*File too large'):
      metrics_log.write('train', 2, {'loss': 0.5})
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  metrics_log.close()
  assert (tmp_path / 'metrics.jsonl').stat().st_size == size
  assert [entry['step'] for entry in log.read_metrics(tmp_path)] == [1]


def test_a_silent_log_has_the_entries_and_writes_none(tmp_path):
  _write(tmp_path, [1, 2, 3], start=0)
  before = {path: path.stat() for path in tmp_path.rglob('*')}
  silent = log.SilentLog(tmp_path, step=2)
  silent.write('train', 3, {'loss': 9.0})
  silent.close()
  assert [entry['step'] for entry in silent.entries] == [1, 2, 3]
  assert silent.entries[-1] == {'kind': 'train', 'step': 3, 'loss': 9.0}
  assert {path: path.stat() for path in tmp_path.rglob('*')} == before


@pytest.mark.parametrize(
    'line',
    [
        '7',
        '{}',
        '{"step": 7}',
        '{"kind": "train", "step": "7"}',
        '{"kind": "epoch", "step": 7}',
        '[' * 99_999,
        '\xff',
    ],
)
def test_lines_that_are_no_entries_are_passed_over(line, tmp_path):
  entries = _write(tmp_path, (2, 4), start=0)
  with (tmp_path / 'metrics.jsonl').open('ab') as file:
    file.write(line.encode('latin-1') + b'\n')
  assert log.read_metrics(tmp_path) == entries
  assert _write(tmp_path, (9,), start=8)[:2] == entries


def test_a_new_run_starts_an_empty_log(tmp_path):
  assert log.read_metrics(tmp_path) == []
  _write(tmp_path, (2,), start=0)
  assert _write(tmp_path, (), start=0) == []


# TensorBoard.


def _read(folder):
  """The events of all files: length, checksum, event, checksum."""
  found = []
  for path in sorted(folder.glob('events.*')):
    data = path.read_bytes()
    while data:
      (length,) = struct.unpack('<Q', data[:8])
      found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
      data = data[16 + length :]
  return found


def test_what_is_written_can_be_read_before_it_is_closed(tmp_path):
  folder, warned = tmp_path / 'tensorboard', []
  file = log._Events(folder, step=4, warn=warned.append)
  file.write('train', 7, {'loss': 0.25, 'accuracy': 1})
  version, start, scalars = _read(folder)
  assert version.file_version == 'brain.Event:2'
  assert start.step == 5  # what an earlier start wrote from here on is void
  assert start.session_log.status == start.session_log.START
  assert scalars.step == 7
  assert {value.tag: value.simple_value for value in scalars.summary.value} == {
      'train/loss': 0.25,
      'train/accuracy': 1.0,
  }
  file.close()
  assert not warned


@pytest.mark.skipif(
    not pathlib.Path('/dev/full').exists(), reason='needs /dev/full'
)
def test_a_full_disk_is_told_once_and_the_run_goes_on(tmp_path, monkeypatch):
  from tensorboardX import record_writer

  monkeypatch.setattr(
      record_writer, 'open_file', lambda path: open('/dev/full', 'wb')
  )
  warned = []
  file = log._Events(tmp_path / 'events', step=0, warn=warned.append)
  for step in range(100):
    file.write('train', step, {'loss': 0.25})
  file.close()
  (line,) = warned
  assert 'No space left on device' in line and 'metrics.jsonl' in line


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
  (tmp_path / 'file').touch()
  warned = []
  file = log._Events(tmp_path / 'file' / 'e', step=0, warn=warned.append)
  file.write('train', 1, {'loss': 0.25})
  file.close()
  assert len(warned) == 1
