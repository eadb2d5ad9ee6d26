"""Groups of arms, timed in turn beside the rates that the machine reaches."""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
from typing import Any

from gswinrmt_jax.benchmark import process, timing

Spec = Mapping[str, Any]
_CEILINGS = {'matmul': 'flops', 'copy': 'bytes'}


@dataclasses.dataclass(frozen=True)
class Settings:
  """How everything is measured.

  Attributes:
    repeats: Timings of each arm.
    seconds: That each takes about; the warm-up too.
    threads: Cores that every process gets; None for all.
  """

  repeats: int
  seconds: float
  threads: int | None


@dataclasses.dataclass
class Measured:
  """An arm's outcome.

  Attributes:
    name: As the table has it.
    spec: What it was.
    facts: What its worker told.
    taken: None if it could not be run.
    peak: Bytes, and whose: the device's, or the process's.
    error: Why it could not be run.
  """

  name: str
  spec: Spec
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  taken: timing.Timing | None = None
  peak: tuple[int | None, str] = (None, 'not measured')
  error: str = ''


class Bench:
  """The processes of the ceilings, alive while groups are timed beside them.

  Attributes:
    platform: Where JAX runs: 'cpu', 'gpu' or 'tpu'.
    dtype: Of the computation.
    facts: Of the machine, as the first worker told them.
  """

  def __init__(
      self,
      settings: Settings,
      dtype: str | None,
      say: Callable[[str], None],
  ):
    """Starts both ceilings.

    Raises:
      process.ArmError: If one does not run.
    """
    self._settings, self._say = settings, say
    self._cores = process.pinned(settings.threads)
    self._open = contextlib.ExitStack()
    with contextlib.ExitStack() as stack:
      self._ceilings = {
          task: self._start(stack, {'task': task, 'dtype': dtype})
          for task in _CEILINGS
      }
      self._open = stack.pop_all()
    self.facts = self._ceilings['matmul'].facts
    self.platform = self.facts['platform']
    self.dtype = self.facts['dtype']

  def close(self) -> None:
    """Ends the processes."""
    self._open.close()

  def measure(
      self, arms: Mapping[str, Spec]
  ) -> tuple[list[Measured], dict[str, timing.Timing]]:
    """Times some arms in turn, and the ceilings in the same rounds.

    An arm that cannot be built, or fails, has its reason instead of a timing.

    Args:
      arms: Specs by name; dtype and platform are filled in.

    Returns:
      An outcome for each arm, and the timings of the ceilings.
    """
    outcomes = [
        Measured(name, {**spec, 'dtype': self.dtype, 'platform': self.platform})
        for name, spec in arms.items()
    ]
    with contextlib.ExitStack() as stack:
      running, calls = self._begin(stack, outcomes)
      ceilings = list(self._ceilings.values())
      seconds = self._settings.seconds / 4  # they vary less
      calls += [timing.warm_up(ceiling, seconds) for ceiling in ceilings]
      timings = timing.interleaved(
          [one.process for one in running] + ceilings,
          calls,
          self._settings.repeats,
          self._say,
      )
      for one, taken in zip(running, timings, strict=False):
        one.outcome.taken = taken
        one.outcome.peak = one.process.peak()
    rates = dict(zip(_CEILINGS, timings[len(running) :], strict=True))
    return outcomes, rates

  def rates(self, timings: Mapping[str, timing.Timing]) -> dict[str, float]:
    """Returns FLOP a second of products, and bytes a second of a copy."""
    return {
        name: self._ceilings[task].facts[name] / timings[task].median
        for task, name in _CEILINGS.items()
    }

  def _begin(self, stack, outcomes):
    """Builds and warms up what can be; one after the other, alone."""
    running, calls = [], []
    for outcome in outcomes:
      self._say(f'{outcome.name}: building')
      try:
        started = self._start(stack, outcome.spec)
        calls.append(timing.warm_up(started, self._settings.seconds))
      except process.ArmError as error:
        outcome.error = str(error)
        self._say(f'{outcome.name}: {error}')
        continue
      outcome.facts = started.facts
      running.append(_Running(outcome, started))
    return running, calls

  def _start(self, stack, spec):
    started = process.Process(spec, self._cores)
    stack.callback(started.close)
    return started


@dataclasses.dataclass(frozen=True)
class _Running:
  outcome: Measured
  process: process.Process
