"""Tests how convolutions start, and BatchNorm against values by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.models import layers

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ('module', 'fan_in'),
    [
        (layers.Conv(64, 3, jnp.float32), 9 * 48),
        (layers.DepthwiseConv(5, jnp.float32), 25),
    ],
)
def test_convolutions_start_uniform_in_the_fan_in(module, fan_in):
  params = module.init(KEY, jnp.zeros((1, 6, 7, 48)))['params']
  bound = 1 / np.sqrt(fan_in)
  for leaf in (params['kernel'], params['bias']):
    assert np.abs(leaf).max() <= bound
    assert np.abs(leaf).max() > 0.9 * bound
  np.testing.assert_allclose(
      params['kernel'].std(), bound / np.sqrt(3), rtol=0.1
  )


def _train(x, stats=None, **params):
  module = layers.BatchNorm()
  channels = x.shape[-1]
  variables = {
      'params': {'scale': jnp.ones(channels), 'bias': jnp.zeros(channels)}
      | params,
      'batch_stats': stats
      or {'mean': jnp.zeros(channels), 'var': jnp.ones(channels)},
  }
  y, updates = module.apply(variables, x, train=True, mutable=['batch_stats'])
  return y, updates['batch_stats']


def test_by_hand():
  """1, 2, 3, 6 have mean 3 and variance 14 / 4, or 14 / 3 unbiased."""
  x = jnp.array([1.0, 2.0, 3.0, 6.0]).reshape(2, 2, 1, 1)
  y, stats = _train(
      x,
      stats={'mean': jnp.array([10.0]), 'var': jnp.array([20.0])},
      scale=jnp.array([2.0]),
      bias=jnp.array([5.0]),
  )
  expected = 2 * (np.array([1, 2, 3, 6]) - 3) / np.sqrt(3.5 + 1e-5) + 5
  np.testing.assert_allclose(y.ravel(), expected, rtol=1e-6)
  np.testing.assert_allclose(stats['mean'], [0.9 * 10 + 0.1 * 3], rtol=1e-6)
  np.testing.assert_allclose(stats['var'], [0.9 * 20 + 0.1 * 14 / 3], rtol=1e-6)


def test_a_single_value_has_no_variance():
  with pytest.raises(ValueError, match='more than one value per channel'):
    _train(jnp.full((1, 1, 1, 2), 3.0))
  _, stats = _train(jnp.full((2, 1, 1, 2), 3.0))
  np.testing.assert_allclose(stats['var'], [0.9] * 2, rtol=1e-6)
