"""Text at the terminal: lines, a progress line, durations."""

from collections.abc import Iterator
import contextlib
import errno
import os
import shutil
import sys
from typing import TextIO


class Terminal:
  """Prints lines; on a terminal the progress line is redrawn in place.

  If whoever reads goes away, as `| head` or a lost SSH session does, the rest
  is printed nowhere: a run does not end for it.
  """

  def __init__(self, stream: TextIO | None = None):
    self._stream = stream or sys.stdout
    self._in_place = self._stream.isatty()
    self._open = False

  def say(self, text: str = '') -> None:
    """Prints lines that stay."""
    if self._open:
      self._open = False
      self._print('\n')
    self._print(f'{text}\n')

  def progress(self, text: str) -> None:
    """Prints the progress line, over the last one on a terminal."""
    if not self._in_place:
      self._print(f'{text}\n')
      return
    # A line that wraps could not be drawn over.
    text = text[: shutil.get_terminal_size().columns - 1]
    self._print(f'\r\x1b[K{text}')
    self._open = True

  @contextlib.contextmanager
  def sparing(self, what: str) -> Iterator[None]:
    """Says in one line that a file which a run can do without is missing."""
    try:
      yield
    except OSError as error:
      self.say(f'{what} is not written ({error.strerror or error})')

  def _print(self, text):
    try:
      print(text, end='', file=self._stream, flush=True)
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EIO):
        raise
      # The descriptor, too: what is buffered is written once more at exit.
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, self._stream.fileno())
      os.close(nowhere)


def duration(seconds: float) -> str:
  """Returns seconds as `4.5s`, `45s`, `3m05s` or `2h07m`."""
  if seconds < 9.95:
    return f'{seconds:.1f}s'
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours}h{minutes:02}m'
  return f'{minutes}m{seconds:02}s' if minutes else f'{seconds}s'
