"""Two processes at one folder."""

import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import run_lock

_HOLD = """
import pathlib, sys, time
from gswinrmt_jax.runs import run_lock
with run_lock.of_run(pathlib.Path(sys.argv[1])):
  print('held', flush=True)
  time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
  """Another process, which holds the lock of tmp_path / 'run'."""
  process = subprocess.Popen(
      [sys.executable, '-c', _HOLD, str(tmp_path / 'run')],
      stdout=subprocess.PIPE,
      text=True,
  )
  try:
    assert process.stdout.readline() == 'held\n'
    yield process
  finally:
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_refuses_until_the_first_is_killed(tmp_path, holder):
  folder = tmp_path / 'run'
  with pytest.raises(UserError) as refused, run_lock.of_run(folder):
    pass
  assert (
      f'is being trained by process {holder.pid} on {socket.gethostname()}: '
      in str(refused.value)
  )
  holder.send_signal(signal.SIGKILL)
  holder.wait()
  assert (folder / '.lock').exists()  # left over, and locks nothing
  with run_lock.of_run(folder):
    assert f'process {os.getpid()} ' in (folder / '.lock').read_text()
    (folder / 'config.json').touch()
  assert [path.name for path in folder.iterdir()] == ['config.json']


def test_a_folder_in_which_nothing_was_begun_is_not_left(tmp_path):
  with pytest.raises(ZeroDivisionError), run_lock.of_run(tmp_path / 'a'):
    raise ZeroDivisionError
  assert not (tmp_path / 'a').exists()
  with run_lock.of_run(tmp_path):
    pass
  assert tmp_path.exists()  # was there before


def test_a_file_that_is_removed_as_it_is_opened_is_not_taken(
    tmp_path, monkeypatch
):
  """Its last holder removed it: others would lock a new one beside it."""
  path, flock, calls = tmp_path / 'lock', fcntl.flock, []

  def late(file, how):
    calls.append(how)
    if len(calls) == 1:
      path.unlink()
    flock(file, how)

  monkeypatch.setattr(fcntl, 'flock', late)
  with run_lock.claimed(path) as holder, run_lock.claimed(path) as again:
    assert holder is None and str(os.getpid()) in again
  assert len(calls) == 3


def test_without_locks_in_the_file_system_nothing_is_locked(
    tmp_path, monkeypatch
):
  def flock(file, how):
    raise OSError(95, 'Operation not supported')

  monkeypatch.setattr(fcntl, 'flock', flock)
  path = tmp_path / 'lock'
  with run_lock.claimed(path) as one, run_lock.claimed(path) as other:
    assert one is other is None


def test_a_folder_that_cannot_be_made(tmp_path):
  (tmp_path / 'file').touch()
  with (
      pytest.raises(UserError, match='cannot write to'),
      run_lock.of_run(tmp_path / 'file' / 'run'),
  ):
    pass
