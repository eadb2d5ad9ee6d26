"""Means over seeds, and whether a difference is more than noise."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import statistics

CONFIDENCE = 0.95
_LEAST = 3  # seeds: the interval of two can be as narrow as you like, by luck


@dataclasses.dataclass(frozen=True)
class Mean:
  """Mean and standard deviation (n - 1) of n values.

  Attributes:
    std: None for a single value.
  """

  n: int
  mean: float
  std: float | None

  @classmethod
  def of(cls, values: Sequence[float]) -> 'Mean | None':
    """Returns that of some values, None for no value."""
    if not values:
      return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return cls(len(values), statistics.fmean(values), std)


@dataclasses.dataclass(frozen=True)
class Difference:
  """Of two variants, seed by seed, with a confidence interval (Student's t).

      d_s = second_s - first_s,    mean(d) -+ t(0.975, n - 1) std(d) / sqrt(n)

  Pairing by seed takes out what two runs of a seed share: the order of the
  data and what is drawn while training.

  Attributes:
    n: Seeds that both have.
    low: Lower end of the interval; None with one seed.
    high: Upper end, likewise.
  """

  n: int
  mean: float
  low: float | None = None
  high: float | None = None

  @property
  def more_than_noise(self) -> bool | None:
    """Whether the interval is on one side of 0; None with too few seeds."""
    return None if self.n < _LEAST else self.low > 0 or self.high < 0

  @property
  def sentence(self) -> str:
    """In words."""
    if self.more_than_noise is None:
      seeds = 'one seed' if self.n == 1 else f'{self.n} seeds'
      return f'{seeds}: it cannot be told from noise'
    if self.more_than_noise:
      return f'more than noise: {"better" if self.mean > 0 else "worse"}'
    return 'not more than noise'


def difference(
    first: Mapping[int, float], second: Mapping[int, float]
) -> Difference | None:
  """Returns second less first, by seed; None without a seed that both have."""
  # Imported here: a help text need not wait for it.
  from scipy import stats

  found = Mean.of(
      [second[seed] - first[seed] for seed in sorted(first) if seed in second]
  )
  if found is None or found.std is None:
    return found and Difference(1, found.mean)
  quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, found.n - 1))
  half = quantile * found.std / math.sqrt(found.n)
  return Difference(found.n, found.mean, found.mean - half, found.mean + half)
