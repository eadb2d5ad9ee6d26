"""The clock of a run: how long its intervals take and wait for data."""

from collections.abc import Iterable, Iterator
import time
from typing import Any


class Clock:
  """Measures intervals of steps, and the time since the first step."""

  def __init__(self):
    """Starts an interval."""
    self._began = time.perf_counter()
    self.restart()

  def restart(self) -> None:
    """Starts an interval."""
    self._waited, self._since = 0.0, time.perf_counter()

  def timing(self, batches: Iterable[Any]) -> Iterator[Any]:
    """Yields batches and measures the time that the host waits for them.

    The clock starts here, so that the first interval excludes compilation.
    """
    self._began = time.perf_counter()
    self.restart()
    iterator = iter(batches)
    while True:
      before = time.perf_counter()
      batch = next(iterator, None)
      self._waited += time.perf_counter() - before
      if batch is None:
        return
      yield batch

  def elapsed(self) -> float:
    """Returns the seconds since the first step."""
    return time.perf_counter() - self._began

  def interval(self) -> tuple[float, float]:
    """Returns the seconds of this interval, and those waited for data."""
    return time.perf_counter() - self._since, self._waited
