"""BatchNorm by the batch's statistics: values, gradients, far from zero."""

import math

import jax
from jax import test_util
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.ops import backend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5, 6)) * 2 + RNG.normal(size=6)
SCALE, BIAS = RNG.normal(size=(2, 6))
EPSILON = 0.3


def _expected(x, gelu):
  mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
  y = (x - mean) / np.sqrt(variance + EPSILON) * SCALE + BIAS
  if gelu:
    y *= np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)(y)
  return y, mean, variance


@pytest.mark.parametrize('gelu', [False, True])
def test_values(gelu):
  with jax.enable_x64(True):
    arrays = map(jnp.asarray, (X, SCALE, BIAS))
    got = ops.batch_norm(*arrays, epsilon=EPSILON, gelu=gelu)
  for one, other in zip(got, _expected(X, gelu), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('gelu', [False, True])
def test_gradients_by_finite_differences(gelu):
  def y(*arrays):
    # Not its square or sum, whose gradients vanish.
    return jnp.sin(
        ops.batch_norm(*map(jnp.asarray, arrays), epsilon=EPSILON, gelu=gelu)[0]
    )

  with jax.enable_x64(True):
    test_util.check_grads(y, (X, SCALE, BIAS), 1, modes=['rev'], rtol=1e-6)


@pytest.mark.parametrize('gelu', [False, True])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_what_a_gpu_computes_is_what_a_cpu_computes(gelu, dtype):
  x, scale, bias = jnp.asarray(X, dtype), *map(jnp.float32, (SCALE, BIAS))

  def outputs():
    y, pull, statistics = jax.vjp(
        lambda *arrays: _split(
            ops.batch_norm(*arrays, epsilon=EPSILON, gelu=gelu)
        ),
        *(x, scale, bias),
        has_aux=True,
    )
    return y, *statistics, *pull(jnp.cos(y))

  def _split(result):
    return result[0], result[1:]

  expected = outputs()
  with backend.tracing_for('gpu'):
    got = outputs()
  for one, other in zip(got, expected, strict=True):
    assert one.dtype == other.dtype
    np.testing.assert_allclose(
        *(np.asarray(each, np.float32) for each in (one, other)),
        rtol=1e-5,
        atol=1e-5,
    )


def test_images_whose_means_are_far_from_each_other_and_from_zero():
  """In float32, E[x^2] - E[x]^2 would be off by a tenth and more."""
  offsets = 1000 + np.array([-0.5, 0.0, 0.5])[:, None, None, None]
  x = jnp.asarray(offsets + 0.01 * X, jnp.float32)
  _, mean, variance = ops.batch_norm(
      x, jnp.ones(6), jnp.zeros(6), epsilon=EPSILON
  )
  exact = np.asarray(x, np.float64)
  np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=1e-7)
  np.testing.assert_allclose(variance, exact.var((0, 1, 2)), rtol=1e-5)


def test_narrow_maps_are_normalised_in_float32():
  """A bfloat16 sum of 4,096 ones would stop at 256."""
  x = jnp.ones((1, 64, 64, 1), jnp.bfloat16).at[:, :, 32:].set(3)
  one, zero = jnp.ones(1), jnp.zeros(1)
  (y, mean, variance), pull = jax.vjp(
      lambda *arrays: ops.batch_norm(*arrays, epsilon=0.0), x, one, zero
  )
  assert y.dtype == 'bfloat16' and mean.dtype == variance.dtype == 'float32'
  assert (mean, variance) == (2, 1) and set(np.unique(y)) == {-1, 1}
  dx, dscale, dbias = pull((jnp.ones_like(y), mean, variance))
  assert dx.dtype == 'bfloat16' and not dx.any()
  assert (dscale, dbias) == (0, 4096)
