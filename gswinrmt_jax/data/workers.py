"""What processes that decode pictures do first."""

import multiprocessing
import os
import signal
import threading


def begin(*_: int) -> None:
  """Leaves Ctrl-C to the parent, and ends when that does, even if killed."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)

  def follow():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=follow, daemon=True).start()
