"""GELU of a product with its bias: values, gradients, dtypes."""

import math

import jax
from jax import test_util
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax import ops

X = np.random.default_rng(0).normal(size=(2, 3, 5, 4)) * 2
BIAS = np.array([-1.0, 0.5, 0.0, 2.0])


def test_it_is_z_times_the_normal_distribution():
  with jax.enable_x64(True):
    y = ops.biased_gelu(jnp.asarray(X), jnp.asarray(BIAS))
  z = X + BIAS
  phi = np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)(z)
  np.testing.assert_allclose(y, z * phi, rtol=1e-9, atol=1e-15)


def test_gradients_by_finite_differences():
  with jax.enable_x64(True):
    test_util.check_grads(
        lambda *arrays: ops.biased_gelu(*map(jnp.asarray, arrays)),
        (X, BIAS),
        1,
        modes=['rev'],
    )


def test_without_a_bias_it_is_the_same():
  x, zeros = jnp.float32(X), jnp.zeros(4)
  one, pull = jax.vjp(ops.gelu, x)
  other, biased_pull = jax.vjp(lambda x: ops.biased_gelu(x, zeros), x)
  np.testing.assert_array_equal(one, other)
  cotangent = jnp.float32(X[::-1])
  np.testing.assert_array_equal(pull(cotangent)[0], biased_pull(cotangent)[0])


def test_the_tails():
  """Below, what is left is smaller than the rounding of one."""
  x = jnp.array([-40.0, -6.0, 6.0, 40.0])
  np.testing.assert_allclose(ops.gelu(x), [0, 0, 6, 40], atol=1e-6)
  slopes = jax.vmap(jax.grad(ops.gelu))(x)
  np.testing.assert_allclose(slopes, [0, 0, 1, 1], atol=1e-6)


def test_narrow_maps_are_computed_in_float32():
  x, bias = jnp.asarray(X, jnp.bfloat16), jnp.asarray(BIAS, jnp.float32)
  y, pull = jax.vjp(ops.biased_gelu, x, bias)
  dx, dbias = pull(jnp.ones_like(y))
  assert (y.dtype, dx.dtype, dbias.dtype) == ('bfloat16', 'bfloat16', 'float32')
  wide = ops.biased_gelu(x.astype(jnp.float32), bias)
  np.testing.assert_array_equal(y, wide.astype(jnp.bfloat16))


def test_gelu_is_the_exact_one():
  np.testing.assert_allclose(ops.gelu(jnp.float32(1.0)), 0.841345, atol=1e-6)
