"""LayerNorm: values, gradients, and tokens far from zero."""

import jax
from jax import test_util
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.ops import backend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 5, 8)) * 3 + 1
SCALE, BIAS = RNG.normal(size=(2, 8))


def _expected(x, epsilon=1e-6):
  centred = x - x.mean(-1, keepdims=True)
  variance = (centred**2).mean(-1, keepdims=True)
  return centred / np.sqrt(variance + epsilon)


def test_values():
  with jax.enable_x64(True):
    plain = ops.normalize(jnp.asarray(X))
    affine = ops.layer_norm(*map(jnp.asarray, (X, SCALE, BIAS)), epsilon=0.5)
  np.testing.assert_allclose(plain, _expected(X), rtol=1e-12)
  np.testing.assert_allclose(
      affine, _expected(X, 0.5) * SCALE + BIAS, rtol=1e-11
  )


def test_gradients_by_finite_differences():
  with jax.enable_x64(True):
    test_util.check_grads(
        lambda x: ops.normalize(jnp.asarray(x)),
        (X,),
        1,
        modes=['rev'],
        rtol=1e-5,
    )
    test_util.check_grads(
        lambda *arrays: ops.layer_norm(*map(jnp.asarray, arrays), epsilon=0.5),
        (X, SCALE, BIAS),
        1,
        modes=['rev'],
        rtol=1e-5,
    )


def test_what_a_gpu_sums_is_what_a_cpu_sums():
  arrays = tuple(map(jnp.float32, (X, SCALE, BIAS)))

  def gradients():
    return jax.grad(
        lambda *arrays: jnp.sin(ops.layer_norm(*arrays)).sum(), (0, 1, 2)
    )(*arrays)

  expected = gradients()
  with backend.tracing_for('gpu'):
    actual = gradients()
  for one, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize('mean', [0.0, 1e4, -1e4])
def test_a_mean_that_is_large_beside_the_deviation(mean):
  """Where `E[x^2] - E[x]^2` in float32 has not one digit left."""
  x = jnp.float32(X + mean)
  expected = _expected(np.float64(x))
  plain = ops.normalize(x)
  affine = ops.layer_norm(x, jnp.ones(8), jnp.zeros(8))
  np.testing.assert_allclose(plain, expected, atol=2e-3 if mean else 2e-6)
  np.testing.assert_allclose(affine, expected, atol=2e-3 if mean else 2e-6)


def test_an_outlier_in_front():
  """The channel that is taken off is the one that makes up the variance."""
  x = X[0, 0].copy()
  x[:, 0] = 1e3
  affine = ops.layer_norm(jnp.float32(x), jnp.ones(8), jnp.zeros(8))
  np.testing.assert_allclose(affine, _expected(x), atol=2e-5)


def test_narrow_maps_are_computed_in_float32():
  x = jnp.asarray(X, jnp.bfloat16)
  scale, bias = jnp.float32(SCALE), jnp.float32(BIAS)
  y, pull = jax.vjp(ops.layer_norm, x, scale, bias)
  dtypes = [str(d.dtype) for d in pull(jnp.ones_like(y))]
  assert [str(y.dtype), *dtypes] == ['bfloat16'] * 2 + ['float32'] * 2
  wide = ops.layer_norm(x.astype(jnp.float32), scale, bias)
  np.testing.assert_array_equal(y, wide.astype(jnp.bfloat16))
