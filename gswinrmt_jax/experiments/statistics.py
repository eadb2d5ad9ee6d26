"""Means over seeds, and whether a difference is more than noise."""

from collections.abc import Iterable, Mapping
import dataclasses
import math
import statistics

CONFIDENCE = 0.95
_LEAST = 3  # seeds: with two, the interval can be tiny by chance


@dataclasses.dataclass(frozen=True)
class Mean:
  """Mean and standard deviation (n - 1) of n values.

  Attributes:
    n: Number of values.
    mean: Their mean.
    std: Their standard deviation; None for a single value.
  """

  n: int
  mean: float
  std: float | None = None

  @classmethod
  def of(cls, values: Iterable[float]) -> 'Mean | None':
    """Returns mean and standard deviation of values, None without values."""
    values = list(values)
    if not values:
      return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return cls(len(values), statistics.fmean(values), std)

  @property
  def interval(self) -> tuple[float, float] | None:
    """Ends of the confidence interval of the mean; None for a single value.

    Student's t: `mean -+ t(0.975, n - 1) std / sqrt(n)`.
    """
    if self.std is None:
      return None
    # Imported here, so that a help text does not wait for it.
    from scipy import stats

    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.n - 1))
    half = quantile * self.std / math.sqrt(self.n)
    return self.mean - half, self.mean + half

  @property
  def verdict(self) -> str:
    """For differences: whether the interval is on one side of 0."""
    if self.n < _LEAST:
      seeds = 'one seed' if self.n == 1 else f'{self.n} seeds'
      return f'{seeds}: it cannot be distinguished from seed noise'
    low, high = self.interval
    if low <= 0 <= high:
      return 'not more than noise'
    return f'more than noise: {"better" if low > 0 else "worse"}'


def difference(
    first: Mapping[int, float], second: Mapping[int, float]
) -> Mean | None:
  """Returns the mean of `second - first`, paired by seed.

  Pairing removes the noise that two runs with one seed share: the order of the
  data and the random draws of training. Returns None without a common seed.
  """
  return Mean.of(second[seed] - first[seed] for seed in first.keys() & second)
