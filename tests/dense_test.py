"""Linear layers: initialisation, fused projections, norms folded into them."""

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.models import dense, norm

KEY = jax.random.key(0)


def test_fused_layers_are_the_layers_of_their_names():
  x = jnp.asarray(
      np.random.default_rng(0).normal(size=(2, 3, 5, 4)), jnp.float32
  )
  module = dense.FusedDense(6, ('one', 'two'), jnp.float32)
  params = module.init(KEY, x)['params']
  params['two']['bias'] += 1.0
  one, two = module.apply({'params': params}, x)
  for name, actual in (('one', one), ('two', two)):
    expected = dense.Dense(6).apply({'params': params[name]}, x)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
  assert np.abs(one - two).max() > 0.1


def test_a_scaled_layer_is_a_layer_and_its_scale():
  x = jnp.asarray(
      np.random.default_rng(0).normal(size=(2, 3, 5, 4)), jnp.float32
  )
  module = dense.AffineDense(6, jnp.float32)
  params = module.init(KEY, x)['params']
  params['bias'] += 1.0
  plain = dense.Dense(6)
  shapes = jax.tree.map(jnp.shape, plain.init(KEY, x)['params'])
  assert jax.tree.map(jnp.shape, params) == shapes
  expected = plain.apply({'params': params}, x)
  apply = jax.jit(module.apply)
  np.testing.assert_allclose(apply({'params': params}, x), expected, atol=1e-6)
  scale = jnp.arange(-2.0, 4.0)
  np.testing.assert_allclose(
      apply({'params': params}, x, after=norm.Affine(scale, None)),
      expected * scale[None, None, None],
      atol=1e-6,
  )
  before = norm.Affine(jnp.arange(4.0), jnp.arange(4.0, 8.0))
  changed = x * before.scale[None, None, None] + before.bias[None, None, None]
  np.testing.assert_allclose(
      apply(
          {'params': params}, x, before=before, after=norm.Affine(scale, None)
      ),
      plain.apply({'params': params}, changed) * scale[None, None, None],
      atol=1e-6,
  )


def test_parameters_may_be_of_numpy():
  """As weights of a file are before anything has put them on a device."""
  rng = np.random.default_rng(0)
  kernel, bias = rng.normal(size=(4, 6)), rng.normal(size=6)
  ahead, behind = (
      norm.Affine(rng.normal(size=size), rng.normal(size=size))
      for size in (4, 6)
  )
  with jax.enable_x64(True):
    found = *ahead.ahead_of(kernel, bias), *behind.behind(kernel, bias)
  expected = (
      kernel * ahead.scale[:, None],
      bias + ahead.bias @ kernel,
      kernel * behind.scale,
      bias * behind.scale + behind.bias,
  )
  for actual, value in zip(found, expected, strict=True):
    np.testing.assert_allclose(actual, value, rtol=1e-12)


def test_gelu_follows_where_asked():
  x = jnp.asarray(
      np.random.default_rng(0).normal(size=(2, 3, 5, 4)), jnp.float32
  )
  module = dense.AffineDense(6, jnp.float32, gelu=True)
  params = module.init(KEY, x)['params']
  params['bias'] += jnp.arange(-2.0, 4.0)
  np.testing.assert_allclose(
      module.apply({'params': params}, x),
      ops.gelu(dense.Dense(6).apply({'params': params}, x)),
      atol=1e-6,
  )


def test_a_norm_and_the_layers_behind_it_are_both():
  """The scale and bias that a normalisation leaves to fused layers."""
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(2, 3, 5, 4)), jnp.float32)
  affine = {'scale': rng.normal(size=4), 'bias': rng.normal(size=4)}
  affine = jax.tree.map(jnp.float32, affine)
  normed, before = norm.Normalization().apply({'params': affine}, x)
  module = dense.FusedDense(6, ('one', 'two'), jnp.float32)
  params = module.init(KEY, x)['params']
  params['two']['bias'] += 1.0
  whole = norm.LayerNorm().apply({'params': affine}, x)
  for actual, name in zip(
      module.apply({'params': params}, normed, before),
      ('one', 'two'),
      strict=True,
  ):
    expected = dense.Dense(6).apply({'params': params[name]}, whole)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_linear_layers_start_normal_with_deviation_002():
  kernel = dense.Dense(400).init(KEY, jnp.zeros((1, 500)))['params']['kernel']
  np.testing.assert_allclose(kernel.std(), 0.02, rtol=0.01)
  # A truncation at two deviations would cut the tails that a normal has.
  assert np.abs(kernel).max() > 4 * 0.02
