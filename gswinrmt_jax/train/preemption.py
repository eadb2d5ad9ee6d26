"""Preemption: SIGTERM, Ctrl-C and a lost session end a run between steps."""

from collections.abc import Iterator
import contextlib
import os
import signal
import threading

from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import Stopped

# SIGHUP is what a lost SSH session sends.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Preemption:
  """A context manager that handles signals asking a run to end.

  The first signal raises `Stopped` at once, unless `defer`. It also restores
  the previous handlers, so that a second signal ends the process. SIGHUP is
  then ignored, as a lost session sends it twice. A signal that was ignored
  before stays ignored, such as SIGHUP after `nohup` and Ctrl-C after `&`.

  Only the main thread can handle signals; in another, this does nothing.

  Attributes:
    received: Number of the signal received, or None.
  """

  def __init__(self):
    self.received: int | None = None
    self._deferred = False
    self._before = {}

  def __enter__(self) -> 'Preemption':
    if threading.current_thread() is threading.main_thread():
      self._before = {
          number: handler
          for number in _SIGNALS
          if (handler := signal.getsignal(number)) != signal.SIG_IGN
      }
    for number in self._before:
      signal.signal(number, self._receive)
    return self

  def __exit__(self, *_) -> None:
    self._restore()

  @contextlib.contextmanager
  def defer(self) -> Iterator[None]:
    """Inside, the first signal only sets `received` and raises nothing."""
    self._deferred = True
    try:
      yield
    finally:
      self._deferred = False

  def check(self) -> None:
    """Raises `Stopped` if a signal was received.

    Python discards an exception that a handler raises inside a destructor or
    the garbage collector, so `received` is checked again where a run can end.
    """
    if self.received:
      raise Stopped(
          f'stopped by {signal.Signals(self.received).name}; the same command '
          'resumes from the last checkpoint, if there is one',
          self.received,
      )

  def requested(self, *, agree: bool) -> int:
    """Returns the number of the signal to stop for now, or 0.

    Args:
      agree: Whether processes may wait for each other here. Several processes
        have to stop after the same step.
    """
    if processes.share()[1] == 1:
      return self.received or 0
    return processes.greatest(self.received or 0) if agree else 0

  def _receive(self, number, frame):
    del frame
    self._restore()
    # A lost session sends it twice: the shell, and the system when the shell
    # ends; systemd sends it after SIGTERM. Nobody asks for haste by it.
    if signal.SIGHUP in self._before:
      signal.signal(signal.SIGHUP, signal.SIG_IGN)
    self.received = number
    if not self._deferred:
      self.check()
    when = 'this step'
    if processes.share()[1] > 1:
      when = 'the next logged step, as all processes do'
    text = (
        f'\n{signal.Signals(number).name}: the run ends after {when}, with a '
        'checkpoint; a second SIGTERM or Ctrl-C stops it at once\n'
    )
    # The signal may have interrupted `print`. Nobody may be reading.
    with contextlib.suppress(OSError):
      os.write(2, text.encode())

  def _restore(self):
    for number, handler in self._before.items():
      signal.signal(number, handler)
