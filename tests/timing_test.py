"""Turns, warm-up and ratios of timing, on clocks that are made up."""

import pytest

from gswinrmt_jax.benchmark import timing


class Clocked:
  """Takes the same time for each call, and keeps what was asked."""

  def __init__(self, name, seconds, journal):
    self.name, self.seconds, self.journal = name, seconds, journal

  def run(self, calls):
    self.journal.append((self.name, calls))
    return calls * self.seconds


def test_arms_take_turns():
  journal = []
  arms = [Clocked('a', 0.5, journal), Clocked('b', 0.25, journal)]
  said = []
  first, second = timing.interleaved(arms, [2, 4], 3, said.append)
  assert journal == [('a', 2), ('b', 4)] * 3
  assert first.seconds == (0.5,) * 3 and second.seconds == (0.25,) * 3
  assert (first.calls, second.calls) == (2, 4) and len(said) == 3


def test_warm_up_lasts_and_tells_how_many_calls_fill_the_time():
  journal = []
  assert timing.warm_up(Clocked('a', 0.1, journal), 1.0) == 10
  assert sum(calls for _, calls in journal) >= 10
  # A slow program runs twice at least, and once in a repeat.
  journal.clear()
  assert timing.warm_up(Clocked('a', 5.0, journal), 1.0) == 1
  assert journal == [('a', 1), ('a', 1)]


def test_median_spread_and_ratio():
  slow = timing.Timing((4.0, 1.0, 2.0, 3.0, 5.0), 1)
  assert slow.median == 3.0
  assert slow.spread == pytest.approx((4 - 2) / 2 / 3)
  # Round by round: 2, 1, 2, 3, 5 times, not 3 / 1 by the medians.
  fast = timing.Timing((2.0, 1.0, 1.0, 1.0, 1.0), 1)
  assert timing.times_as_fast(fast, slow) == 2.0
  assert timing.Timing((1.0,), 1).spread == 0.0
