"""BatchNorm against numbers worked by hand, and PyTorch's bookkeeping."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from gswinrmt_jax.models import norm


def _train(x, stats=None, dtype=jnp.float32, **params):
  module = norm.BatchNorm(dtype)
  channels = x.shape[-1]
  variables = {
      'params': {'scale': jnp.ones(channels), 'bias': jnp.zeros(channels)}
      | params,
      'batch_stats': stats
      or {'mean': jnp.zeros(channels), 'var': jnp.ones(channels)},
  }
  y, updates = module.apply(
      variables, tiny.Through(channels), x, train=True, mutable=['batch_stats']
  )
  return y, updates['batch_stats']


def test_by_hand():
  """1, 2, 3, 6: mean 3, variance 14 / 4 biased and 14 / 3 unbiased."""
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


def test_evaluation_uses_the_running_statistics():
  variables = {
      'params': {'scale': jnp.array([3.0]), 'bias': jnp.array([1.0])},
      'batch_stats': {'mean': jnp.array([2.0]), 'var': jnp.array([4.0])},
  }
  x = jnp.full((1, 1, 2, 1), 6.0)
  module = norm.BatchNorm(jnp.float32)
  y = module.apply(variables, tiny.Through(1), x, train=False)
  np.testing.assert_allclose(y.ravel(), [7.0, 7.0], rtol=1e-5)


def test_variance_survives_a_large_mean():
  """E[x^2] - E[x]^2 would be 0 in float32 for mean 1000 and deviation 0.01."""
  noise = np.random.default_rng(0).normal(size=(4, 5, 6, 2))
  x = jnp.asarray(1000 + 0.01 * noise, jnp.float32)
  _, stats = _train(x)
  expected = 0.9 + 0.1 * np.asarray(x, np.float64).var((0, 1, 2), ddof=1)
  np.testing.assert_allclose(stats['var'], expected, rtol=1e-6)
  assert (np.asarray(stats['var']) > 0.9).all()


def test_channels_keep_their_own_statistics():
  x = jnp.stack([jnp.arange(6.0), 10 * jnp.arange(6.0)], -1).reshape(1, 2, 3, 2)
  y, stats = _train(x)
  np.testing.assert_allclose(y[..., 0], y[..., 1], atol=1e-5)
  np.testing.assert_allclose(stats['mean'], [0.25, 2.5], rtol=1e-6)


def test_a_single_value_does_not_divide_by_zero():
  y, stats = _train(jnp.full((1, 1, 1, 1), 3.0))
  np.testing.assert_array_equal(y, jnp.zeros((1, 1, 1, 1)))
  np.testing.assert_allclose(stats['var'], [0.9], rtol=1e-6)


def test_bfloat16_input_is_reduced_in_float32():
  """A bfloat16 sum of 4096 ones would stop at 256."""
  x = jnp.ones((1, 64, 64, 1), jnp.bfloat16)
  y, stats = _train(x, dtype=jnp.bfloat16)
  assert y.dtype == jnp.bfloat16 and stats['mean'].dtype == jnp.float32
  np.testing.assert_allclose(stats['mean'], [0.1], rtol=1e-6)


def test_gradients_flow_through_the_statistics():
  """The gradient of a normalised map has no mean and no slope."""
  x = jnp.asarray(
      np.random.default_rng(1).normal(size=(2, 3, 4, 2)), jnp.float32
  )
  weight = jnp.asarray(
      np.random.default_rng(2).normal(size=x.shape), jnp.float32
  )
  grad = jax.grad(lambda x: jnp.sum(_train(x)[0] * weight))(x)
  np.testing.assert_allclose(grad.sum((0, 1, 2)), 0, atol=1e-5)
  np.testing.assert_allclose((grad * x).sum((0, 1, 2)), 0, atol=1e-4)


def test_layer_norm_epsilon():
  """Channels of +-1e-3: a variance of 1e-6 beside an epsilon of 1e-6."""
  x = jnp.array([[[[1e-3, -1e-3]]]])
  y = norm.LayerNorm().apply(
      {'params': {'scale': jnp.ones(2), 'bias': jnp.zeros(2)}}, x
  )
  np.testing.assert_allclose(y.ravel(), [2**-0.5, -(2**-0.5)], rtol=1e-4)
