"""Event files, read back record by record, and a disk that is full."""

import pathlib
import struct

import pytest
from tensorboardX.proto import event_pb2

from gswinrmt_jax.runs import events


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
  file = events.Events(folder, step=4, warn=warned.append)
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
  file = events.Events(tmp_path / 'events', step=0, warn=warned.append)
  for step in range(100):
    file.write('train', step, {'loss': 0.25})
  file.close()
  (line,) = warned
  assert 'No space left on device' in line and 'metrics.jsonl' in line


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
  (tmp_path / 'file').touch()
  warned = []
  file = events.Events(tmp_path / 'file' / 'e', step=0, warn=warned.append)
  file.write('train', 1, {'loss': 0.25})
  file.close()
  assert len(warned) == 1
