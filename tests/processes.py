"""Helpers for the processes that tests start or leave behind."""

import pathlib
import signal
import subprocess
import sys
import time


def child_of_killed(program: str) -> int:
  """Returns the PID of a process whose parent was killed.

  Args:
    program: Code of the parent: starts a process, prints its PID and kills
      itself.
  """
  done = subprocess.run(
      [sys.executable, '-c', program], stdout=subprocess.PIPE, timeout=90
  )
  assert done.returncode == -signal.SIGKILL
  return int(done.stdout)


def wait_for_end(pid: int, seconds: float = 20) -> None:
  """Waits until a process has ended; a zombie counts as ended."""
  status = pathlib.Path('/proc', str(pid), 'status')
  end = time.monotonic() + seconds
  while status.exists() and 'State:\tZ' not in status.read_text():
    assert time.monotonic() < end, f'process {pid} goes on'
    time.sleep(0.05)
