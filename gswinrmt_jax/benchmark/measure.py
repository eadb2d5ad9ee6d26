"""Times several programs interleaved in one run, so that they share noise.

The usual cause of a wrong ratio is a machine that is slower for one program
than for the other, from a warmer chip or from other load.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
from typing import Any

import numpy as np

from gswinrmt_jax.benchmark import record, worker
from gswinrmt_jax.benchmark.worker import Spec

_MIN_CALLS = 2  # in a warm-up, however long a call takes


def warm_up(program: worker.Worker, seconds: float) -> int:
  """Calls a program for at least `seconds`.

  Returns:
    The number of calls that take about that long, at least one.
  """
  calls, done, total = 1, 0, 0.0
  while True:
    spent = program.run(calls)
    done, total = done + calls, total + spent
    per_call = spent / calls
    if total >= seconds and done >= _MIN_CALLS:
      # From the last stretch, since the first calls are slower.
      return max(1, round(seconds / per_call))
    remaining = round((seconds - total) / per_call)
    calls = max(1, min(2 * calls, remaining))


def interleaved(
    programs: Sequence[worker.Worker],
    calls: Sequence[int],
    repeats: int,
    say: Callable[[str], None],
) -> list[list[float]]:
  """Times warm programs in turn: A B C, A B C, and so on.

  In each of `repeats` rounds, a program is called as often as `calls` says.
  Returns for each program its seconds per call in each round.
  """
  taken = [[] for _ in programs]
  for repeat in range(repeats):
    for program, count, seconds in zip(programs, calls, taken, strict=True):
      seconds.append(program.run(count) / count)
    say(f'round {repeat + 1} of {repeats}')
  return taken


def figures(seconds: Sequence[float]) -> dict[str, Any]:
  """Returns the median of seconds per call over rounds, and its spread.

  The spread is half the interquartile range divided by the median.
  """
  low, median, high = np.percentile(seconds, (25, 50, 75))
  return {
      'milliseconds': 1e3 * median,
      'spread': (high - low) / 2 / median,
      'repeats_ms': [1e3 * one for one in seconds],
  }


def compare(rows: Sequence[dict[str, Any]], flops: float) -> None:
  """Adds throughput, relative speed and model FLOP utilisation to each row.

  - 'images_per_second': the median over rounds.
  - 'relative': throughput over that of the first program, as the median of the
    ratios within a round. The timings of a round are close in time, so their
    ratio is steadier than the ratio of two medians.
  - 'mfu': FLOP per second of the model's matmuls and convolutions (two per
    multiply-accumulate, three passes in training) over `flops`, the FLOP per
    second of the matmul.
  """
  first = None  # images per second of the first program, by round
  for row in rows:
    if 'not_measured' in row:
      continue
    rates = 1e3 * row['facts']['images'] / np.array(row['repeats_ms'])
    if row is rows[0]:
      first = rates
    row['images_per_second'] = float(np.median(rates))
    row['relative'] = None if first is None else float(np.median(rates / first))
    if 'flops' in row['facts']:
      row['mfu'] = 1e3 * row['facts']['flops'] / row['milliseconds'] / flops


class Bench:
  """Times groups of programs, each together with a matmul.

  Attributes:
    facts: About the machine.
    say: Receives progress and tables.
  """

  def __init__(
      self,
      *,
      repeats: int,
      seconds: float,
      threads: int | None = None,
      dtype: str | None = None,
      say: Callable[[str], None],
  ):
    """Starts the process of the matmul.

    Args:
      repeats: Number of rounds.
      seconds: Length of each program's turn in a round, and of its warm-up.
      threads: Cores of every process; None for all.
      dtype: Computation dtype; None for the platform's default.
      say: Receives progress and tables.

    Raises:
      worker.WorkerError: If it fails.
    """
    self._repeats, self._seconds, self.say = repeats, seconds, say
    self._cores = worker.choose_cores(threads)
    self._matmul = worker.Worker(
        {'task': 'matmul', 'dtype': dtype}, self._cores
    )
    self.facts = self._matmul.facts

  def close(self) -> None:
    """Ends the process of the matmul."""
    self._matmul.close()

  def measure(self, specs: Mapping[str, Spec]) -> dict[str, Any]:
    """Times programs and the matmul in the same rounds; prints a table.

    Args:
      specs: Specs by name; dtype and platform are filled in.

    Returns:
      'rows', one per program: its spec with the results of `figures` and
      `compare`, or in 'not_measured' why it could not be built or warmed up;
      'rates', the FLOP per second of the matmul; and 'rates_spread'.
    """
    shared = {name: self.facts[name] for name in ('dtype', 'platform')}
    rows, running = [], []  # a running program: its row, handle and calls
    with contextlib.ExitStack() as stack:
      for name, spec in specs.items():  # built and warmed up one by one, alone
        rows.append({'program': name, **spec, **shared})
        self.say(f'{name}: building')
        try:
          program = worker.Worker({**spec, **shared}, self._cores)
          stack.callback(program.close)
          calls = warm_up(program, self._seconds)
        except worker.WorkerError as error:
          rows[-1]['not_measured'] = str(error)
          self.say(f'{name}: {error}')
        else:
          running.append((rows[-1], program, calls))
      matmul = {}
      calls = warm_up(self._matmul, self._seconds / 4)  # it varies less
      running.append((matmul, self._matmul, calls))
      found, programs, calls = zip(*running, strict=True)
      timed = interleaved(programs, calls, self._repeats, self.say)
      for row, program, count, seconds in zip(
          found, programs, calls, timed, strict=True
      ):
        size, owner = program.peak()
        row |= {**figures(seconds), 'calls': count, 'facts': program.facts}
        row |= {'peak_bytes': size, 'peak_of': owner}
    flops = 1e3 * matmul['facts']['flops'] / matmul['milliseconds']
    compare(rows, flops)
    self.say(
        f'\n{record.table(rows)}\nmeasured matmul: {flops / 1e12:.4g} TFLOP/s\n'
    )
    return {
        'rows': rows,
        'rates': {'flops': flops},
        'rates_spread': {'matmul': matmul['spread']},
    }
