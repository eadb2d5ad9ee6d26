"""A trace of some steps of a run, for a viewer: `RUN/profile`."""

import pathlib
from typing import Any

import jax

from gswinrmt_jax.errors import UserError


def parse(text: str, stop_step: int) -> range:
  """Returns the steps of `config.profile_steps`, none if it is empty.

  Args:
    text: 'FIRST:LAST', both traced, counted from 1.
    stop_step: The run's last step.

  Raises:
    UserError: If it has another form, or the run no such steps.
  """
  if not text:
    return range(0)
  first, _, last = text.partition(':')
  if first.isdecimal() and last.isdecimal():
    steps = range(int(first), int(last) + 1)
    if steps and steps[0] >= 1 and steps[-1] <= stop_step:
      return steps
  raise UserError(
      f"config.profile_steps is '{text}': must be FIRST:LAST, of steps 1 to "
      f'{stop_step} of this run'
  )


class Profile:
  """Starts and stops the trace as the steps come by.

  Dispatches have to end where it does (`Plan.dispatches`).
  """

  def __init__(self, steps: range, folder: pathlib.Path):
    """Takes the steps to trace, none for no trace, and where it goes."""
    self._steps, self._folder = steps, folder
    self._running = False

  def begins(self, steps: range) -> bool:
    """Returns whether the trace begins with these steps."""
    return not self._running and steps[0] in self._steps

  def begin(self, steps: range) -> None:
    """Starts the trace if these steps, about to be made, are of it."""
    if self.begins(steps):
      jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
      self._running = True

  def end(self, step: int, result: Any) -> bool:
    """Writes the trace if this was its last step; waits for the result first.

    Returns:
      Whether it was.
    """
    if not self._running or step != self._steps[-1]:
      return False
    jax.block_until_ready(result)
    self.close()
    return True

  def close(self) -> None:
    """Stops and writes what runs, as after an error."""
    if self._running:
      self._running = False
      jax.profiler.stop_trace()
