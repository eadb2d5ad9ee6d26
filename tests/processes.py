"""Helpers for waiting, and for processes that tests start or leave behind."""

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


def until(holds, seconds=60, running=(), said=str):
  """Waits until `holds()`; fails if one of the processes ends before.

  The failure shows what `said()` returns.
  """
  end = time.monotonic() + seconds
  while not holds():
    assert all(process.poll() is None for process in running), said()
    assert time.monotonic() < end, said()
    time.sleep(0.01)


def wait_for_end(pid: int) -> None:
  """Waits until a process has ended; a zombie counts as ended."""
  status = pathlib.Path('/proc', str(pid), 'status')
  until(
      lambda: not status.exists() or 'State:\tZ' in status.read_text(),
      seconds=20,
      said=lambda: f'process {pid} goes on',
  )
