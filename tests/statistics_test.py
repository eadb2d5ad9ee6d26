"""Means and intervals, against values worked by hand."""

import math

import pytest

from gswinrmt_jax.experiments.statistics import Difference, difference, Mean


def test_mean_and_deviation():
  """1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, over n - 1 = 2."""
  found = Mean.of([1.0, 2.0, 6.0])
  assert (found.n, found.mean) == (3, 3.0)
  assert found.std == pytest.approx(math.sqrt(7))
  assert Mean.of([0.5]) == Mean(1, 0.5, None)
  assert Mean.of([]) is None


def test_interval_of_paired_differences():
  """Differences 1, 2, 3: mean 2, std 1, t(0.975, 2) = 4.30265 of tables."""
  first = {0: 10.0, 1: 20.0, 2: 5.0, 7: 0.0}
  second = {2: 8.0, 0: 11.0, 1: 22.0, 9: 100.0}
  found = difference(first, second)
  assert (found.n, found.mean) == (3, 2.0)
  half = 4.30265 / math.sqrt(3)
  assert found.low == pytest.approx(2 - half, abs=1e-5)
  assert found.high == pytest.approx(2 + half, abs=1e-5)
  assert found.sentence == 'not more than noise'


def test_two_seeds_have_a_wide_interval():
  """Differences 1, 3: std sqrt(2), over sqrt(2) is 1; t(0.975, 1) = 12.706."""
  found = difference({0: 0.0, 1: 0.0}, {0: 1.0, 1: 3.0})
  assert found.high == pytest.approx(2 + 12.7062, abs=1e-4)


def test_sentences():
  def sentence(*values):
    zero = dict.fromkeys(range(len(values)), 0.0)
    return difference(zero, dict(enumerate(values))).sentence

  assert sentence(0.5) == 'one seed: it cannot be told from noise'
  # Two may be alike by chance: the interval of 1.0 and 1.001 is far from 0.
  assert sentence(1.0, 1.001) == '2 seeds: it cannot be told from noise'
  assert sentence(1.0, 1.1, 0.9) == 'more than noise: better'
  assert sentence(-1.0, -1.1, -0.9) == 'more than noise: worse'
  assert sentence(1.0, 1.1, -0.9) == 'not more than noise'
  assert sentence(0.0, 0.0, 0.0) == 'not more than noise'


def test_without_a_common_seed_there_is_no_difference():
  assert difference({0: 1.0}, {1: 1.0}) is None
  assert difference({0: 1.0}, {0: 3.0, 1: 1.0}) == Difference(1, 2.0)
