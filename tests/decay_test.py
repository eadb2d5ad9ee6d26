"""Decay rates and slopes, against values worked by hand."""

import numpy as np

from gswinrmt_jax.ops import decay


def test_rates_are_those_of_the_released_stages():
  # r = 4 over 4 heads: exponents 2, 3, 4, 5.
  np.testing.assert_allclose(
      decay.decay_rates(4, 4.0), [0.75, 0.875, 0.9375, 0.96875], rtol=1e-15
  )


def test_the_end_of_the_range_is_not_reached():
  # r = 6 over 3 heads: exponents 2, 4, 6, not 8.
  np.testing.assert_allclose(
      decay.decay_rates(3, 6.0), [3 / 4, 15 / 16, 63 / 64], rtol=1e-15
  )


def test_sigmoid_of_the_logits_gives_the_rates():
  logits = decay.decay_logits(3, 6.0)
  np.testing.assert_allclose(logits, np.log([3, 15, 63]), rtol=1e-14)


def test_slopes_alternate_in_sign_and_halve():
  np.testing.assert_array_equal(
      decay.balanced_slopes(4), [-0.5, 0.5, -0.25, 0.25]
  )


def test_the_last_of_an_odd_number_of_heads_has_no_slope():
  np.testing.assert_array_equal(
      decay.balanced_slopes(5), [-0.5, 0.5, -0.25, 0.25, 0]
  )
  np.testing.assert_array_equal(decay.balanced_slopes(1), [0])
