"""Work of the host that the loop need not wait for."""

from collections.abc import Callable
import concurrent.futures
from typing import Any


class Background:
  """Does things in a thread, each of which makes those before it needless."""

  def __init__(self):
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._begun = []

  def begin(self, function: Callable[..., Any], *args: Any) -> None:
    """Calls it with these arguments as soon as the thread is free.

    What still waits for the thread is left out.

    Raises:
      Exception: What one of those before raised.
    """
    kept = [future for future in self._begun if not future.cancel()]
    done = [future for future in kept if future.done()]
    self._begun = [future for future in kept if future not in done]
    self._begun.append(self._thread.submit(function, *args))
    for future in done:
      future.result()

  def wait(self) -> None:
    """Waits for all that was begun.

    Raises:
      Exception: What one of them raised.
    """
    begun, self._begun = self._begun, []
    for future in begun:
      future.result()

  def close(self) -> None:
    """Waits, whatever comes of it, and ends the thread."""
    self._thread.shutdown()
