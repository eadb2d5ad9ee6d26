"""Layers: initialisation, fused projections, stem and downsampling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.models import layers

KEY = jax.random.key(0)


def test_fused_layers_are_the_layers_of_their_names():
  x = jnp.asarray(
      np.random.default_rng(0).normal(size=(2, 3, 5, 4)), jnp.float32
  )
  module = layers.FusedDense(6, ('one', 'two'), jnp.float32)
  params = module.init(KEY, x)['params']
  params['two']['bias'] += 1.0
  one, two = module.apply({'params': params}, x)
  for name, actual in (('one', one), ('two', two)):
    expected = layers.Dense(6).apply({'params': params[name]}, x)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
  assert np.abs(one - two).max() > 0.1


def test_a_scaled_layer_is_a_layer_and_its_scale():
  x = jnp.asarray(
      np.random.default_rng(0).normal(size=(2, 3, 5, 4)), jnp.float32
  )
  module = layers.AffineDense(6, jnp.float32)
  params = module.init(KEY, x)['params']
  params['bias'] += 1.0
  plain = layers.Dense(6)
  shapes = jax.tree.map(jnp.shape, plain.init(KEY, x)['params'])
  assert jax.tree.map(jnp.shape, params) == shapes
  expected = plain.apply({'params': params}, x)
  apply = jax.jit(module.apply)
  np.testing.assert_allclose(apply({'params': params}, x), expected, atol=1e-6)
  scale = jnp.arange(-2.0, 4.0)
  np.testing.assert_allclose(
      apply({'params': params}, x, scale=scale),
      expected * scale[None, None, None],
      atol=1e-6,
  )
  before = layers.Affine(jnp.arange(4.0), jnp.arange(4.0, 8.0))
  changed = x * before.scale[None, None, None] + before.bias[None, None, None]
  np.testing.assert_allclose(
      apply({'params': params}, x, before=before, scale=scale),
      plain.apply({'params': params}, changed) * scale[None, None, None],
      atol=1e-6,
  )


def test_gelu_follows_where_asked():
  x = jnp.asarray(
      np.random.default_rng(0).normal(size=(2, 3, 5, 4)), jnp.float32
  )
  module = layers.AffineDense(6, jnp.float32, gelu=True)
  params = module.init(KEY, x)['params']
  params['bias'] += jnp.arange(-2.0, 4.0)
  np.testing.assert_allclose(
      module.apply({'params': params}, x),
      layers.gelu(layers.Dense(6).apply({'params': params}, x)),
      atol=1e-6,
  )


def test_a_norm_and_the_layers_behind_it_are_both():
  """The scale and bias that a normalisation leaves to fused layers."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(2, 3, 5, 4)), jnp.float32)
  norm = {'scale': rng.normal(size=4), 'bias': rng.normal(size=4)}
  norm = jax.tree.map(jnp.float32, norm)
  normed, before = layers.Normalization().apply({'params': norm}, x)
  module = layers.FusedDense(6, ('one', 'two'), jnp.float32)
  params = module.init(KEY, x)['params']
  params['two']['bias'] += 1.0
  whole = layers.LayerNorm().apply({'params': norm}, x)
  for actual, name in zip(
      module.apply({'params': params}, normed, before),
      ('one', 'two'),
      strict=True,
  ):
    expected = layers.Dense(6).apply({'params': params[name]}, whole)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_linear_layers_start_normal_with_deviation_002():
  kernel = layers.Dense(400).init(KEY, jnp.zeros((1, 500)))['params']['kernel']
  np.testing.assert_allclose(kernel.std(), 0.02, rtol=0.01)
  # A truncation at two deviations would cut the tails that a normal has.
  assert np.abs(kernel).max() > 4 * 0.02


@pytest.mark.parametrize(
    ('module', 'fan_in'),
    [
        (layers.Conv3x3(64, 1, jnp.float32), 9 * 48),
        (layers.DepthwiseConv(5, jnp.float32, 'shift'), 25),
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
  stem = layers.Stem(6, jnp.float32)
  y, variables = jax.eval_shape(
      lambda x: stem.init_with_output(KEY, x, train=False), x
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
  """Its last BN is the output: both signs, mean 0 and deviation 1."""
  x = jax.random.normal(KEY, (4, 32, 32, 3))
  stem = layers.Stem(6, jnp.float32)
  variables = stem.init(KEY, x, train=False)
  y, _ = stem.apply(variables, x, train=True, mutable=['batch_stats'])
  np.testing.assert_allclose(y.mean((0, 1, 2)), 0, atol=1e-5)
  np.testing.assert_allclose(y.std((0, 1, 2)), 1, atol=1e-3)


def test_gelu_is_the_exact_one():
  np.testing.assert_allclose(layers.gelu(jnp.float32(1.0)), 0.841345, atol=1e-6)


def test_layer_norm_epsilon():
  """Channels of +-1e-3: a variance of 1e-6 beside an epsilon of 1e-6."""
  x = jnp.array([[[[1e-3, -1e-3]]]])
  y = layers.LayerNorm().apply(
      {'params': {'scale': jnp.ones(2), 'bias': jnp.zeros(2)}}, x
  )
  np.testing.assert_allclose(y.ravel(), [2**-0.5, -(2**-0.5)], rtol=1e-4)
