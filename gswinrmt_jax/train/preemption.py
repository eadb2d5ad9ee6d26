"""SIGTERM and Ctrl-C, heard between steps."""

from collections.abc import Iterator
import contextlib
import os
import signal
import threading

from gswinrmt_jax.errors import Stopped

_HEARD = (signal.SIGTERM, signal.SIGINT)


class Signals:
  """What asked the run to end, if anything did.

  Attributes:
    received: The signal's number; None as long as there was none.
  """

  def __init__(self):
    self.received: int | None = None
    self._deferred = False

  @contextlib.contextmanager
  def heard(self) -> Iterator[None]:
    """Listens inside, in the main thread; elsewhere nothing is changed.

    A signal ends what is under way at once, unless `deferred`. After the first
    the handlers are those of before: a second signal ends the process. One that
    was ignored, as Ctrl-C is behind `nohup` and `&`, stays so.
    """
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = {number: signal.getsignal(number) for number in _HEARD}
    self._before = {
        number: handler
        for number, handler in before.items()
        if handler != signal.SIG_IGN
    }
    for number in self._before:
      signal.signal(number, self._receive)
    try:
      yield
    finally:
      self._restore()

  @contextlib.contextmanager
  def deferred(self) -> Iterator[None]:
    """Has the first signal inside be noted in `received`, and no more."""
    self._deferred = True
    try:
      yield
    finally:
      self._deferred = False

  def check(self) -> None:
    """Ends what is under way if a signal asked for it.

    What it raised at once Python has ignored if it came upon the end of an
    object's life, or the collection of garbage.

    Raises:
      Stopped: If there was one.
    """
    if self.received:
      raise Stopped(
          f'stopped by {name(self.received)}; the same command goes on from '
          'the last checkpoint',
          self.received,
      )

  def _receive(self, number, frame):
    del frame
    self._restore()
    self.received = number
    if not self._deferred:
      self.check()
    said = (
        f'\n{name(number)}: ends after the step under way, with a checkpoint; '
        'once more to stop at once\n'
    )
    os.write(2, said.encode())  # Not by print, which may be interrupted here.

  def _restore(self):
    for number, handler in self._before.items():
      signal.signal(number, handler)


def name(number: int) -> str:
  """Returns the name of a signal, 'SIGTERM'."""
  return signal.Signals(number).name
