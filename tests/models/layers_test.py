"""Tests layers, stems and merging against loops and values by hand."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax.models import backbone, layers, stem

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ('module', 'fan_in'),
    [
        (layers.Conv3x3(64, 1, jnp.float32), 9 * 48),
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


@pytest.mark.parametrize(
    ('size', 'quarter'), [((32, 32), (8, 8)), ((33, 47), (9, 12))]
)
def test_the_stem_quarters_the_extents_rounding_up(size, quarter):
  x = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
  module = stem.Stem(6, jnp.float32)
  y, variables = jax.eval_shape(
      lambda x: module.init_with_output(KEY, x, train=False), x
  )
  assert y.shape == (2, *quarter, 6)
  shapes = {
      k: v['kernel'].shape
      for k, v in variables['params'].items()
      if 'conv' in k
  }
  assert shapes == {
      'conv0': (3, 3, 3, 3),
      'conv1': (3, 3, 3, 3),
      'conv2': (3, 3, 3, 6),
      'conv3': (3, 3, 6, 6),
  }


def test_the_stem_ends_without_activation():
  """Its output is that of BN: both signs, mean 0, standard deviation 1."""
  x = jax.random.normal(KEY, (4, 32, 32, 3))
  module = stem.Stem(6, jnp.float32)
  variables = module.init(KEY, x, train=False)
  y, _ = module.apply(variables, x, train=True, mutable=['batch_stats'])
  np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-5)
  np.testing.assert_allclose(y.std((0, 1, 2)), 1, atol=1e-3)


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


def test_evaluation_uses_the_running_statistics():
  variables = {
      'params': {'scale': jnp.array([3.0]), 'bias': jnp.array([1.0])},
      'batch_stats': {'mean': jnp.array([2.0]), 'var': jnp.array([4.0])},
  }
  x = jnp.full((1, 1, 2, 1), 6.0)
  module = layers.BatchNorm()
  y = module.apply(variables, x, train=False)
  np.testing.assert_allclose(y.ravel(), [7.0, 7.0], rtol=1e-5)


def test_variance_survives_a_large_mean():
  """E[x^2] - E[x]^2 in float32 would be 0 for mean 1000 and deviation 0.01."""
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
  """A bfloat16 sum of 4,096 ones would stop at 256."""
  x = jnp.ones((1, 64, 64, 1), jnp.bfloat16)
  y, stats = _train(x)
  assert y.dtype == jnp.bfloat16 and stats['mean'].dtype == jnp.float32
  np.testing.assert_allclose(stats['mean'], [0.1], rtol=1e-6)


def test_gradients_flow_through_the_statistics():
  """The gradient of a normalised map has mean 0 and no component along it."""
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
  """Channels of +-1e-3 have a variance of 1e-6, equal to the epsilon."""
  x = jnp.array([[[[1e-3, -1e-3]]]])
  y = layers.LayerNorm().apply(
      {'params': {'scale': jnp.ones(2), 'bias': jnp.zeros(2)}}, x
  )
  np.testing.assert_allclose(y.ravel(), [2**-0.5, -(2**-0.5)], rtol=1e-4)


def _params(module, shape):
  class AsModel:

    def init(self, key, x, train):
      return module.init(key, x, train=train)

  return random_variables.nested(AsModel(), shape)['params']


def _normed(params, x):
  centred = x - x.mean(-1, keepdims=True)
  x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  return x * np.asarray(params['scale']) + np.asarray(params['bias'])


@pytest.mark.parametrize('use_norm', [False, True])
@pytest.mark.parametrize('size', [(8, 12), (9, 14), (3, 2)])
def test_embedding_matches_loops(size, use_norm):
  """Patches that reach over the right or lower edge are padded with zeros."""
  x = random_variables.image((2, *size, 3))
  module = stem.PatchEmbedding(5, 4, use_norm, jnp.float32)
  params = _params(module, x.shape)
  image = np.asarray(x, np.float64)
  kernel, bias = (np.asarray(params['conv'][k]) for k in ('kernel', 'bias'))
  rows, columns = (-(-extent // 4) for extent in size)
  expected = np.tile(bias.astype(np.float64), (2, rows, columns, 1))
  for b, row, column in np.ndindex(2, *size):
    expected[b, row // 4, column // 4] += (
        image[b, row, column] @ kernel[row % 4, column % 4]
    )
  if use_norm:
    expected = _normed(params['norm'], expected)
  actual = module.apply({'params': params}, x, train=False)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize('size', [(4, 6), (5, 7), (1, 1)])
def test_merging_matches_loops(size):
  x = random_variables.image((2, *size, 3))
  module = backbone.Downsample(5, 'merge', jnp.float32)
  params = _params(module, x.shape)
  rows, columns = (-(-extent // 2) for extent in size)
  joined = np.zeros((2, rows, columns, 12))
  for b, row, column in np.ndindex(2, *size):
    # The order is upper left, lower left, upper right, lower right.
    place = 2 * (column % 2) + row % 2
    joined[b, row // 2, column // 2, 3 * place : 3 * place + 3] = x[
        b, row, column
    ]
  kernel = np.asarray(params['linear']['kernel'], np.float64)
  assert params['linear'].keys() == {'kernel'}
  np.testing.assert_allclose(
      module.apply({'params': params}, x, train=True),
      _normed(params['norm'], joined) @ kernel,
      rtol=0,
      atol=5e-6,
  )


def test_how_they_start():
  """The embedding starts as a convolution, the merging as a linear layer."""
  key = jax.random.key(0)
  embedding = stem.PatchEmbedding(64, 4, False, jnp.float32)
  init = jax.jit(embedding.init, static_argnames='train')
  conv = init(key, jnp.zeros((1, 8, 8, 3)), train=False)['params']['conv']
  assert conv['kernel'].shape == (4, 4, 3, 64)
  for leaf in conv.values():
    assert 0.9 / np.sqrt(48) < np.abs(leaf).max() <= 1 / np.sqrt(48)
  merging = backbone.Downsample(100, 'merge', jnp.float32)
  init = jax.jit(merging.init, static_argnames='train')
  params = init(key, jnp.zeros((1, 2, 2, 50)), train=False)['params']
  assert params['norm']['scale'].shape == (200,)
  kernel = np.asarray(params['linear']['kernel'])
  np.testing.assert_allclose(kernel.std(), 0.02, rtol=0.02)


def test_parameters_may_be_partitioned():
  """Users who shard a model by axis names have parameters in boxes."""
  x = random_variables.image((1, 4, 4, 6))
  for module in (
      layers.Dense(6, jnp.float32),
      layers.Conv3x3(6, 1, jnp.float32),
      layers.DepthwiseConv(3, jnp.float32),
      layers.LayerNorm(),
  ):
    params = module.init(jax.random.key(0), x)['params']
    boxed = jax.tree.map(
        lambda leaf: nn.Partitioned(leaf, names=(None,) * leaf.ndim), params
    )
    np.testing.assert_array_equal(
        module.apply({'params': boxed}, x), module.apply({'params': params}, x)
    )
