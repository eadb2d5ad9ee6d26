"""SIGTERM, Ctrl-C and a lost session end a run between steps."""

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
  """Listens for signals that ask a run to end; a context manager.

  The first signal raises `Stopped` at once, unless `deferred`. After it the
  handlers are those of before: a second signal ends the process. A signal that
  was ignored stays so, such as SIGHUP after `nohup` and Ctrl-C after `&`.

  Only the main thread can listen; in another one nothing is changed.

  Attributes:
    received: The signal's number; None as long as there was none.
  """

  def __init__(self):
    self.received: int | None = None
    self._deferred = False
    self._before = {}

  def __enter__(self) -> 'Preemption':
    if threading.current_thread() is threading.main_thread():
      before = {number: signal.getsignal(number) for number in _SIGNALS}
      self._before = {
          number: handler
          for number, handler in before.items()
          if handler != signal.SIG_IGN
      }
    for number in self._before:
      signal.signal(number, self._receive)
    return self

  def __exit__(self, *_) -> None:
    self._restore()

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """Inside, the first signal is noted in `received` and nothing is raised."""
    self._deferred = True
    try:
      yield
    finally:
      self._deferred = False

  def check(self) -> None:
    """Raises `Stopped` if there was a signal.

    Python drops what a handler raises inside a destructor or the garbage
    collector, so `received` is looked at again where a run can end.
    """
    if self.received:
      raise Stopped(
          f'stopped by {signal.Signals(self.received).name}; the same command '
          'resumes from the last checkpoint',
          self.received,
      )

  def requested(self, *, agree: bool) -> int:
    """Returns the number of a signal that asks to end now, or 0.

    Args:
      agree: Whether several processes may wait for each other here: they have
        to end after the same step.
    """
    if processes.share()[1] == 1:
      return self.received or 0
    return processes.greatest(self.received or 0) if agree else 0

  def _receive(self, number, frame):
    del frame
    self._restore()
    self.received = number
    if not self._deferred:
      self.check()
    text = (
        f'\n{signal.Signals(number).name}: ends after this step, with a '
        'checkpoint; once more to stop at once\n'
    )
    # Not by print, which may be interrupted here; nobody may be reading.
    with contextlib.suppress(OSError):
      os.write(2, text.encode())

  def _restore(self):
    for number, handler in self._before.items():
      signal.signal(number, handler)
