"""Several programs timed in one run, turn by turn, to share the noise.

A clock that runs faster for one program than for the other (a warmer chip, a
neighbour on the machine) is the usual way to a wrong ratio.
"""

from collections.abc import Callable, Sequence
import dataclasses
import statistics
from typing import Protocol

_LEAST_WARM_UP = 2  # calls, however long one takes


class Arm(Protocol):
  """A program to be timed."""

  def run(self, calls: int) -> float:
    """Does the work so often; returns the seconds when it is done."""


@dataclasses.dataclass(frozen=True)
class Timing:
  """Seconds of one call, a figure for each repeat in the order taken.

  Attributes:
    seconds: Of one call, mean over the calls of the repeat.
    calls: In each repeat.
  """

  seconds: tuple[float, ...]
  calls: int

  @property
  def median(self) -> float:
    """The median of the repeats, in seconds."""
    return statistics.median(self.seconds)

  @property
  def spread(self) -> float:
    """Half the distance of the quartiles, over the median."""
    if len(self.seconds) < 2:
      return 0.0
    low, _, high = statistics.quantiles(self.seconds, n=4, method='inclusive')
    return (high - low) / 2 / self.median


def warm_up(arm: Arm, seconds: float) -> int:
  """Runs a program until it has been at work for `seconds`.

  Returns:
    How many calls take about that long, at least one.
  """
  calls, done, total = 1, 0, 0.0
  while True:
    spent = arm.run(calls)
    done, total = done + calls, total + spent
    per_call = spent / calls
    if total >= seconds and done >= _LEAST_WARM_UP:
      # By the last stretch: the first calls are slower.
      return max(1, round(seconds / per_call))
    left = round((seconds - total) / per_call)
    calls = max(1, min(2 * calls, left))


def interleaved(
    arms: Sequence[Arm],
    calls: Sequence[int],
    repeats: int,
    say: Callable[[str], None],
) -> list[Timing]:
  """Times the arms in turn: A B C, A B C, and so on.

  Args:
    arms: What to time, warm.
    calls: Of each arm in a repeat.
    repeats: Timings of each.
    say: Told of each round.
  """
  taken = [[] for _ in arms]
  for repeat in range(repeats):
    for arm, count, seconds in zip(arms, calls, taken, strict=True):
      seconds.append(arm.run(count) / count)
    say(f'round {repeat + 1} of {repeats}')
  return [
      Timing(tuple(seconds), count)
      for seconds, count in zip(taken, calls, strict=True)
  ]


def times_as_fast(ours: Timing, other: Timing) -> float:
  """Returns how many times as fast as the other: median over the rounds.

  The two timings of a round stand side by side in time, so their ratio is
  steadier than the ratio of two medians.
  """
  return statistics.median(
      there / here
      for here, there in zip(ours.seconds, other.seconds, strict=True)
  )
