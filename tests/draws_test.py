"""Uniform draws turned into integers and normal draws."""

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.augment import draws

LARGEST = 1 - 2.0**-23  # of what jax.random.uniform returns in float32


def test_integer_covers_its_range_evenly():
  uniform = jax.random.uniform(jax.random.key(0), (30_000,))
  counts = np.bincount(draws.integer(uniform, 15), minlength=15)
  assert len(counts) == 15
  # Six deviations of a binomial count of 2,000.
  np.testing.assert_allclose(counts, 2000, atol=6 * 43.2)


def test_integer_never_reaches_count():
  count = jnp.array([1, 2, 9, 15, 225], jnp.int32)
  top = draws.integer(jnp.full(5, LARGEST, jnp.float32), count)
  np.testing.assert_array_equal(top, count - 1)
  np.testing.assert_array_equal(draws.integer(jnp.zeros(5), count), 0)


def test_normal_is_the_quantile_function():
  uniform = jnp.array([0.022750132, 0.158655254, 0.5, 0.841344746, 0.977249868])
  np.testing.assert_allclose(
      draws.normal(uniform), [-2, -1, 0, 1, 2], atol=2e-6
  )


def test_normal_is_finite_and_symmetric_at_the_ends():
  low, high = draws.normal(jnp.array([0.0, LARGEST], jnp.float32))
  assert 5 < high < 5.5
  np.testing.assert_allclose(low, -high, rtol=1e-3)
