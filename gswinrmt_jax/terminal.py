"""Terminal output: lines, a progress line, elapsed time, durations, counts."""

from collections.abc import Iterator
import contextlib
import errno
import os
import shutil
import sys
import threading
import time
from typing import TextIO
import unicodedata

from gswinrmt_jax.errors import interruption

_PATIENCE = 2.0  # seconds before a slow operation is shown
_TICK = 1.0  # seconds between updates of the elapsed time


def printable(text: str) -> str:
  r"""Returns text with control characters escaped, ESC as `\x1b`."""
  return ''.join(
      ascii(c)[1:-1] if unicodedata.category(c) in ('Cc', 'Cs') else c
      for c in text
  )


class Terminal:
  """Prints lines; on a terminal the progress line is redrawn in place.

  If the reader goes away, such as `| head` or a lost SSH session, further
  output is discarded and the run continues. It continues, too, if the stream
  cannot be written for another reason, such as a full disk; text may be lost.
  """

  def __init__(self, stream: TextIO | None = None):
    self._stream = stream or sys.stdout
    # A stream of the user's own may have `write` alone; there may be none.
    self._in_place = bool(getattr(self._stream, 'isatty', bool)())
    self._open = False  # whether the last line may still change
    self._lock = threading.RLock()  # `busy` counts in a thread

  def say(self, text: str = '') -> None:
    """Prints lines that stay."""
    with self._lock:
      self.end_line()
      lines = (printable(line) for line in text.split('\n'))
      self._print('\n'.join(lines) + '\n')

  def end_line(self) -> None:
    """Ends the progress line, before something else prints to the stream."""
    with self._lock:
      if self._open:
        self._open = False
        self._print('\n')

  def progress(self, text: str, *shorter: str) -> None:
    """Prints the progress line; on a terminal it replaces the last one.

    Of `text` and its ever shorter versions, a terminal shows the first that
    fits.
    """
    if not self._in_place:
      self.say(text)
      return
    # A wrapped line could not be redrawn in place.
    room = shutil.get_terminal_size().columns - 1
    lines = [*map(printable, (text, *shorter))]
    text = next((line for line in lines if len(line) <= room), lines[-1][:room])
    with self._lock:
      self._print(f'\r\x1b[K{text}')
      self._open = True

  @contextlib.contextmanager
  def busy(self, what: str) -> Iterator[None]:
    """Shows `WHAT ... 12s` if the code inside takes longer than two seconds.

    On a terminal the seconds count up in place. Elsewhere the line is printed
    once, and the seconds follow at the end unless something else was printed
    meanwhile.
    """
    ended = threading.Event()
    counting = threading.Thread(
        target=self._count, args=(f'{printable(what)} ...', ended), daemon=True
    )
    counting.start()
    try:
      yield
    finally:
      ended.set()
      counting.join()

  def _count(self, text, ended):
    began = time.perf_counter()
    if ended.wait(_PATIENCE):
      return
    if self._in_place:
      while not ended.is_set():
        self.progress(f'{text} {duration(time.perf_counter() - began)}')
        ended.wait(_TICK)
    else:
      with self._lock:
        self.end_line()
        self._print(text)
        self._open = True
      ended.wait()
    with self._lock:
      if self._open:
        start = f'\r\x1b[K{text}' if self._in_place else ''
        self._print(f'{start} {duration(time.perf_counter() - began)}\n')
        self._open = False

  @contextlib.contextmanager
  def warn_if_not_written(self, what: str) -> Iterator[None]:
    """Prints one line instead of raising if an optional file is not written."""
    try:
      yield
    except Exception as error:  # Matplotlib raises many types.
      if interruption(error):
        raise
      reason = getattr(error, 'strerror', None) or str(error).split('\n')[0]
      self.say(f'{what} was not written ({reason or type(error).__name__})')

  def _print(self, text):
    if self._stream is None:
      return
    # What the stream cannot encode is escaped.
    encoding = getattr(self._stream, 'encoding', None) or 'utf-8'
    text = text.encode(encoding, 'backslashreplace').decode(encoding)
    try:
      flush = hasattr(self._stream, 'flush')
      print(text, end='', file=self._stream, flush=flush)
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EIO):
        return  # A full disk, say: later text may be written.
      # Redirects the descriptor, since buffered text is written again at exit.
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, self._stream.fileno())
      os.close(nowhere)


def counted(count: int, one: str, more: str = '') -> str:
  """Returns '1 object' or '2 objects'; `more` is an irregular plural."""
  return f'{count:,} {one if count == 1 else more or one + "s"}'


def duration(seconds: float) -> str:
  """Returns seconds as `4.5s`, `45s`, `3m05s` or `2h07m`."""
  if seconds < 9.95:
    return f'{seconds:.1f}s'
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours}h{minutes:02}m'
  return f'{minutes}m{seconds:02}s' if minutes else f'{seconds}s'
