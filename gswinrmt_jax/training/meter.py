"""Gathers the metrics of steps without waiting for the device."""

from collections.abc import Iterator
import contextlib
import time

import jax
import numpy as np

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training.step import Metrics


class Meter:
  """Metrics and times of the steps since the last reading.

  The device runs ahead of the host; `read` is the one place that waits for it.
  """

  def __init__(self, batch_size: int):
    self._batch_size = batch_size
    self._pending = []
    self.restart()

  def restart(self) -> None:
    """Leaves out the time since the last reading: it went into other work."""
    self._waited = 0.0
    self._since = time.perf_counter()

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Counts the time inside as spent by the host on getting data."""
    before = time.perf_counter()
    yield
    self._waited += time.perf_counter() - before

  def add(self, metrics: Metrics, count: int) -> None:
    """Keeps metrics of `count` steps on the device, the first of [m] each."""
    self._pending.append((metrics, count))

  def read(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Waits for the steps so far and starts over.

    Args:
      step: Updates made so far.

    Returns:
      Each metric, one number a step; and the speed: `seconds`,
      `images_per_second`, `data_wait` (share of the time).

    Raises:
      UserError: If a loss or gradient is not finite; names the steps.
    """
    parts = jax.device_get(self._pending)
    seconds = time.perf_counter() - self._since
    values = {
        name: np.concatenate(
            [metrics[name][:count] for metrics, count in parts],
            dtype=np.float64,
        )
        for name in parts[0][0]
    }
    finite = values.pop('finite') > 0
    first = step - len(finite) + 1
    if not finite.all():
      raise UserError(
          f'loss or gradient not finite at step {first + finite.argmin()} '
          f'(seen when reading steps {first} to {step})'
      )
    speed = {
        'seconds': seconds,
        'images_per_second': len(finite) * self._batch_size / seconds,
        'data_wait': self._waited / seconds,
    }
    self._pending = []
    self.restart()
    return values, speed
