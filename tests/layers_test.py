"""Convolution layers: initialisation, stem and downsampling."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest

from gswinrmt_jax.models import layers

KEY = jax.random.key(0)


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


def test_in_evaluation_the_norm_is_in_the_convolution():
  """No more work on maps than a convolution and its bias, and the same."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(2, 6, 7, 3)), jnp.float32)
  down = layers.Downsample(5, jnp.float32)
  shapes = jax.eval_shape(lambda: down.init(KEY, x, train=False))
  drawn = jax.tree.map(
      lambda of: jnp.asarray(rng.uniform(0.5, 2.0, of.shape), of.dtype), shapes
  )
  params, stats = (drawn[kind] for kind in ('params', 'batch_stats'))
  conv = layers.Conv3x3(5, 2, jnp.float32)
  of = jax.tree.map(np.asarray, {**params['norm'], **stats['norm']})
  expected = np.asarray(conv.apply({'params': params['conv']}, x)) - of['mean']
  expected *= of['scale'] / np.sqrt(of['var'] + 1e-5)
  expected += of['bias']
  apply = functools.partial(down.apply, train=False)
  np.testing.assert_allclose(apply(drawn, x), expected, rtol=2e-5)
  program = jax.make_jaxpr(apply)(drawn, x)
  of_maps = [
      equation.primitive.name
      for equation in programs.equations(program.jaxpr)
      if equation.outvars[0].aval.shape == (2, 3, 4, 5)
  ]
  assert 'mul' not in of_maps and 'sub' not in of_maps, of_maps
  assert of_maps.count('add') <= 1
