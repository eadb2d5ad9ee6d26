"""Profiling: writes a trace of some steps of a run to `RUN/profile`."""

from collections.abc import Iterator
import contextlib
import pathlib

import jax

from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal


def parse(text: str, stop_step: int) -> range:
  """Returns the steps in `config.profile_steps`; no steps if it is empty.

  Args:
    text: 'FIRST:LAST', counted from 1 and both included, in the format that
      `recipes.check` requires.
    stop_step: The run's last step.

  Raises:
    UserError: If the run has no such steps.
  """
  if not text:
    return range(0)
  first, last = map(int, text.split(':'))
  if not 1 <= first <= last <= stop_step:
    raise UserError(
        f"config.profile_steps is '{text}': must be FIRST:LAST, of steps 1 to "
        f'{stop_step:,} of this run'
    )
  return range(first, last + 1)


class Profiler:
  """Traces selected steps, in the first process."""

  def __init__(self, steps: range, folder: pathlib.Path, terminal: Terminal):
    """Takes the steps to trace, which may be empty, and the output folder."""
    # All processes do the same, and have one folder.
    self._steps = steps if processes.is_first() else range(0)
    self._folder, self._terminal = folder, terminal
    self._running = False

  @contextlib.contextmanager
  def step(self, step: int) -> Iterator[None]:
    """Traces the code inside if the step is selected."""
    if step in self._steps and not self._running:
      jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
      self._running = True
    with jax.profiler.StepTraceAnnotation('train', step_num=step):
      yield
    if self._running and step == self._steps[-1]:
      jax.block_until_ready(jax.live_arrays())
      self.close()
      self._terminal.say(f'Trace in {self._folder}.')

  def close(self) -> None:
    """Stops and writes the running trace, if there is one."""
    if self._running:
      self._running = False
      jax.profiler.stop_trace()
