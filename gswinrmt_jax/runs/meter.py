"""Gathers the metrics of steps without waiting for the device."""

from collections.abc import Iterator, Mapping
import contextlib
import time
from typing import Any

import jax
import numpy as np

from gswinrmt_jax.errors import RunError
from gswinrmt_jax.train.train_step import Metrics


class Meter:
  """Metrics and times of the steps since the last reading.

  The device runs ahead of the host; `read` is where the host waits for it, and
  `pending`.
  """

  def __init__(
      self,
      batch_size: int,
      *,
      skip: bool = False,
      pending: Mapping[str, Any] | None = None,
  ):
    """Begins now.

    Args:
      batch_size: Images in a step.
      skip: Whether steps may be not finite.
      pending: What `pending` returned, of steps before this start of the run.
    """
    self._batch_size, self._skip = batch_size, skip
    self._pending = []
    self.restart()
    if pending:
      metrics = {name: np.array(of) for name, of in pending['metrics'].items()}
      self.add(metrics, len(metrics['finite']))
      self._since -= pending['seconds']
      self._waited += pending['waited']

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

  def pending(self, step: int) -> dict[str, Any]:
    """Waits for the steps so far; returns what has not been read, as JSON.

    Raises:
      RunError: As `read`.
    """
    if not self._pending:
      return {}
    values = self._values(step)
    self._pending = [(values, len(values['finite']))]
    return {
        'metrics': {name: of.tolist() for name, of in values.items()},
        'seconds': time.perf_counter() - self._since,
        'waited': self._waited,
    }

  def read(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Waits for the steps so far and starts over.

    Args:
      step: Updates made so far.

    Returns:
      Each metric, one number a step; and the speed: `seconds`,
      `images_per_second`, `data_wait` (share of the time).

    Raises:
      RunError: If a loss or gradient is not finite and may not be; names the
        steps.
    """
    values = self._values(step)
    seconds = time.perf_counter() - self._since
    speed = {
        'seconds': seconds,
        'images_per_second': len(values['finite']) * self._batch_size / seconds,
        'data_wait': self._waited / seconds,
    }
    self._pending = []
    self.restart()
    return values, speed

  def _values(self, step):
    parts = jax.device_get(self._pending)
    values = {
        name: np.concatenate(
            [metrics[name][:count] for metrics, count in parts],
            dtype=np.float64,
        )
        for name in parts[0][0]
    }
    finite = values['finite'] > 0
    first = step - len(finite) + 1
    if not (self._skip or finite.all()):
      raise RunError(
          f'loss or gradient not finite at step {first + finite.argmin()} '
          f'(seen when reading steps {first} to {step})'
      )
    return values
