"""Several programs timed in one run, turn by turn, so that they share noise.

A clock that runs faster for one program than for the other (a warmer chip, a
neighbour on the machine) is the usual cause of a wrong ratio.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import statistics
from typing import Any

from gswinrmt_jax.benchmark import worker
from gswinrmt_jax.benchmark.worker import Spec

_MIN_CALLS = 2  # of a warm-up, however long a call takes
_RATES = {'matmul': 'flops', 'copy': 'bytes'}  # task -> unit


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds per call, one figure for each round.

  Attributes:
    seconds: Mean over the calls of each round.
    calls: In each round.
  """

  seconds: tuple[float, ...]
  calls: int

  @property
  def median(self) -> float:
    """Median over the rounds, in seconds."""
    return statistics.median(self.seconds)

  @property
  def spread(self) -> float:
    """Half the interquartile range, over the median."""
    if len(self.seconds) < 2:
      return 0.0
    low, _, high = statistics.quantiles(self.seconds, n=4, method='inclusive')
    return (high - low) / 2 / self.median

  def times_as_fast_as(self, other: 'Timing') -> float:
    """Returns the median over the rounds of `other's seconds / own seconds`.

    The timings of a round are neighbours in time, so their ratio is steadier
    than the ratio of two medians.
    """
    pairs = zip(self.seconds, other.seconds, strict=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def warm_up(program: worker.Worker, seconds: float) -> int:
  """Calls a program for at least `seconds`.

  Returns:
    How many calls take about that long, at least one.
  """
  calls, done, total = 1, 0, 0.0
  while True:
    spent = program.run(calls)
    done, total = done + calls, total + spent
    per_call = spent / calls
    if total >= seconds and done >= _MIN_CALLS:
      # By the last stretch: the first calls are slower.
      return max(1, round(seconds / per_call))
    remaining = round((seconds - total) / per_call)
    calls = max(1, min(2 * calls, remaining))


def interleaved(
    programs: Sequence[worker.Worker],
    calls: Sequence[int],
    repeats: int,
    say: Callable[[str], None],
) -> list[Timing]:
  """Times warm programs in turn: A B C, A B C, and so on.

  Args:
    programs: What to time.
    calls: Of each program in a round.
    repeats: Number of rounds.
    say: Receives a line after each round.
  """
  taken = [[] for _ in programs]
  for repeat in range(repeats):
    for program, count, seconds in zip(programs, calls, taken, strict=True):
      seconds.append(program.run(count) / count)
    say(f'round {repeat + 1} of {repeats}')
  return [
      Timing(tuple(seconds), count)
      for seconds, count in zip(taken, calls, strict=True)
  ]


@dataclasses.dataclass
class Measured:
  """The outcome of one program.

  Attributes:
    name: In tables.
    spec: Of the program.
    facts: From its worker.
    timing: None if the program did not run.
    peak: Bytes, and whether they are the device's or the process's.
    error: Why it did not run.
  """

  name: str
  spec: Spec
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  timing: Timing | None = None
  peak: tuple[int | None, str] = (None, 'not measured')
  error: str = ''

  def times_as_fast_as(self, other: 'Measured') -> float | None:
    """Returns the ratio of images per second; None if either did not run."""
    if self.timing is None or other.timing is None:
      return None
    images = self.facts['images'] / other.facts['images']
    return images * self.timing.times_as_fast_as(other.timing)


class Bench:
  """Times groups of programs beside the machine's matmul and copy rates.

  Attributes:
    platform: Where JAX runs: 'cpu', 'gpu' or 'tpu'.
    dtype: Of the computation.
    facts: About the machine.
  """

  def __init__(
      self,
      *,
      repeats: int = 5,
      seconds: float = 3.0,
      threads: int | None = None,
      dtype: str | None = None,
      say: Callable[[str], None] = print,
  ):
    """Starts the processes that measure the rates.

    Args:
      repeats: Rounds.
      seconds: Length of each program's turn in a round, and of its warm-up.
      threads: Cores of every process; None for all.
      dtype: Of the computation; None for the platform's default.
      say: Receives lines about the progress.

    Raises:
      worker.WorkerError: If one does not run.
    """
    self._repeats, self._seconds, self._say = repeats, seconds, say
    self._cores = worker.choose_cores(threads)
    with contextlib.ExitStack() as stack:
      self._rates = {
          task: self._start(stack, {'task': task, 'dtype': dtype})
          for task in _RATES
      }
      self._stack = stack.pop_all()
    self.facts = self._rates['matmul'].facts
    self.platform = self.facts['platform']
    self.dtype = self.facts['dtype']

  def close(self) -> None:
    """Ends the processes."""
    self._stack.close()

  def measure(
      self, specs: Mapping[str, Spec]
  ) -> tuple[list[Measured], dict[str, Timing]]:
    """Times programs in turn, and the rates in the same rounds.

    A program that cannot be built or fails has an error instead of a timing.

    Args:
      specs: By name; dtype and platform are filled in.

    Returns:
      An outcome for each program, and the timings of the rates.
    """
    outcomes = [
        Measured(name, {**spec, 'dtype': self.dtype, 'platform': self.platform})
        for name, spec in specs.items()
    ]
    with contextlib.ExitStack() as stack:
      running, workers, calls = [], [], []
      for outcome in outcomes:  # built and warmed up one by one, alone
        self._say(f'{outcome.name}: building')
        try:
          started = self._start(stack, outcome.spec)
          calls.append(warm_up(started, self._seconds))
        except worker.WorkerError as error:
          outcome.error = str(error)
          self._say(f'{outcome.name}: {error}')
          continue
        outcome.facts = started.facts
        running.append(outcome)
        workers.append(started)
      rates = list(self._rates.values())
      seconds = self._seconds / 4  # rates vary less
      calls += [warm_up(rate, seconds) for rate in rates]
      timings = interleaved(workers + rates, calls, self._repeats, self._say)
      for outcome, started, timing in zip(
          running, workers, timings, strict=False
      ):
        outcome.timing, outcome.peak = timing, started.peak()
    return outcomes, dict(zip(_RATES, timings[len(running) :], strict=True))

  def rates(self, timings: Mapping[str, Timing]) -> dict[str, float]:
    """Returns FLOP per second of products and bytes per second of a copy."""
    return {
        unit: self._rates[task].facts[unit] / timings[task].median
        for task, unit in _RATES.items()
    }

  def _start(self, stack, spec):
    started = worker.Worker(spec, self._cores)
    stack.callback(started.close)
    return started
