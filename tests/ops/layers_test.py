"""Tests convolutions, norms, GELU and biases against NumPy and loops."""

import math

import jax
from jax import test_util
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 5, 6)) * 2 + RNG.normal(size=6)
SCALE, BIAS = RNG.normal(size=(2, 6))


def _wave(function):
  """Returns sin of the outputs; sums or squares of norms have no gradient."""
  return lambda *arrays: jnp.sin(function(*map(jnp.asarray, arrays)))


def _batch_norm(x, scale, bias):
  return ops.batch_norm(x, *ops.batch_statistics(x), scale, bias)


# ------------------------------------------------------------------- linear


def test_dense_is_a_product_and_a_bias():
  kernel = RNG.normal(size=(6, 7))
  bias = RNG.normal(size=7)
  with jax.enable_x64(True):
    arrays = [jnp.asarray(a) for a in (X, kernel, bias)]
    np.testing.assert_allclose(ops.dense(*arrays), X @ kernel + bias)
    np.testing.assert_allclose(ops.dense(*arrays[:2]), X @ kernel)
    test_util.check_grads(_wave(ops.dense), (X, kernel, bias), 1)


def test_scale_channels_multiplies_each():
  np.testing.assert_allclose(
      ops.scale_channels(jnp.float32(X), jnp.float32(SCALE)),
      X * SCALE,
      rtol=1e-6,
  )


@pytest.mark.parametrize(
    ('function', 'dtype'),
    [
        (ops.add_bias, 'bfloat16'),
        (lambda x, bias: ops.scale_channels(x, 1 + bias), 'float32'),
        (lambda x, bias: ops.dense(x, jnp.eye(4), bias), 'bfloat16'),
    ],
)
def test_a_sum_over_many_tokens_does_not_stop_growing(function, dtype):
  """In bfloat16 it would stop at 1,024 or 2,048, and Flax's bias at 8,192."""
  x, bias = jnp.ones((8, 56, 56, 4), jnp.bfloat16), jnp.zeros(4)
  y, pull = jax.vjp(function, x, bias)
  dx, dbias = pull(jnp.ones_like(y))
  assert (y.dtype, dx.dtype, dbias.dtype) == (dtype, 'bfloat16', 'float32')
  np.testing.assert_array_equal(dbias, 8 * 56 * 56)


# --------------------------------------------------------------------- GELU


def test_gelu_is_x_times_the_normal_distribution():
  with jax.enable_x64(True):
    y = ops.gelu(jnp.asarray(X))
    phi = np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)(X)
    np.testing.assert_allclose(y, X * phi, rtol=1e-9, atol=1e-15)
    test_util.check_grads(_wave(ops.gelu), (X,), 2)


def test_the_tails_of_gelu():
  """In the lower tail the values are below the rounding error of 1."""
  x = jnp.array([-40.0, -6.0, 6.0, 40.0])
  np.testing.assert_allclose(ops.gelu(x), [0, 0, 6, 40], atol=1e-6)
  slopes = jax.vmap(jax.grad(ops.gelu))(x)
  np.testing.assert_allclose(slopes, [0, 0, 1, 1], atol=1e-6)


# -------------------------------------------------------------------- norms


def _normalized(x, axes, epsilon):
  centred = x - x.mean(axes, keepdims=True)
  return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)


def test_layer_norm():
  with jax.enable_x64(True):
    x, scale, bias = map(jnp.asarray, (X, SCALE, BIAS))
    np.testing.assert_allclose(
        ops.layer_norm(x), _normalized(X, -1, 1e-6), rtol=1e-11
    )
    np.testing.assert_allclose(
        ops.layer_norm(x, scale, bias, epsilon=0.5),
        _normalized(X, -1, 0.5) * SCALE + BIAS,
        rtol=1e-11,
    )
    test_util.check_grads(_wave(ops.layer_norm), (X,), 1, rtol=1e-5)
    test_util.check_grads(_wave(ops.layer_norm), (X, SCALE, BIAS), 1, rtol=1e-5)


def test_batch_norm():
  with jax.enable_x64(True):
    x, scale, bias = map(jnp.asarray, (X, SCALE, BIAS))
    mean, variance = ops.batch_statistics(x)
    np.testing.assert_allclose(mean, X.mean((0, 1, 2)), rtol=1e-11)
    np.testing.assert_allclose(variance, X.var((0, 1, 2)), rtol=1e-11)
    np.testing.assert_allclose(
        _batch_norm(x, scale, bias),
        _normalized(X, (0, 1, 2), 1e-5) * SCALE + BIAS,
        rtol=1e-9,
    )
    test_util.check_grads(_wave(_batch_norm), (X, SCALE, BIAS), 1, rtol=1e-6)


@pytest.mark.parametrize('mean', [0.0, 1e4, -1e4])
def test_layer_norm_of_a_mean_that_is_large_beside_the_deviation(mean):
  """`E[x^2] - E[x]^2` in float32 would have no correct digit."""
  x = jnp.float32(X + mean)
  expected = _normalized(np.float64(x), -1, 1e-6)
  affine = ops.layer_norm(x, jnp.ones(6), jnp.zeros(6))
  np.testing.assert_allclose(affine, expected, atol=2e-3 if mean else 2e-6)


def test_batch_statistics_of_images_far_from_each_other_and_from_zero():
  """In float32, E[x^2] - E[x]^2 would be off by 10 % or more."""
  offsets = 1000 + np.array([-0.5, 0.0, 0.5])[:, None, None, None]
  x = np.float32(offsets + 0.01 * X)
  mean, variance = ops.batch_statistics(jnp.asarray(x))
  exact = np.float64(x)
  np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=1e-7)
  np.testing.assert_allclose(variance, exact.var((0, 1, 2)), rtol=1e-5)


def test_a_narrow_batch_norm_computes_in_float32():
  """A bfloat16 sum of 4,096 ones would stop at 256."""
  x = jnp.ones((1, 64, 64, 1), jnp.bfloat16).at[:, :, 32:].set(3)
  mean, variance = ops.batch_statistics(x)
  assert mean.dtype == variance.dtype == 'float32'
  assert (mean, variance) == (2, 1)


@pytest.mark.parametrize('function', [ops.layer_norm, _batch_norm])
def test_narrow_maps_are_normalised_in_float32(function):
  x = jnp.asarray(X, jnp.bfloat16)
  scale, bias = jnp.float32(SCALE), jnp.float32(BIAS)
  y, pull = jax.vjp(function, x, scale, bias)
  dtypes = [str(d.dtype) for d in pull(jnp.ones_like(y))]
  assert [str(y.dtype), *dtypes] == ['bfloat16'] * 2 + ['float32'] * 2
  wide = function(x.astype(jnp.float32), scale, bias)
  np.testing.assert_array_equal(y, wide.astype(jnp.bfloat16))


@pytest.mark.parametrize('function', [ops.gelu, ops.layer_norm, _batch_norm])
def test_a_gradient_keeps_the_input_alone(function):
  x, vector = jnp.zeros((2, 3, 5, 6), jnp.bfloat16), jnp.zeros(6)
  arrays = (x,) if function is ops.gelu else (x, vector, vector)
  pull = jax.eval_shape(lambda *a: jax.vjp(function, *a)[1], *arrays)
  kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.ndim == 4]
  assert [str(leaf.dtype) for leaf in kept] == ['bfloat16']


# ------------------------------------------------------------- convolutions


def _convolved(x, kernel, stride):
  """Convolves by loops; depthwise if the kernel has one input channel."""
  radius = kernel.shape[0] // 2
  height, width = x.shape[1:3]
  rows, columns = -(-height // stride), -(-width // stride)
  y = np.zeros((len(x), rows, columns, kernel.shape[-1]))
  for i, j, u, v in np.ndindex(rows, columns, *kernel.shape[:2]):
    row, column = stride * i + u - radius, stride * j + v - radius
    if 0 <= row < height and 0 <= column < width:
      seen = x[:, row, column]
      depthwise = kernel.shape[2] == 1
      y[:, i, j] += seen * kernel[u, v, 0] if depthwise else seen @ kernel[u, v]
  return y


@pytest.mark.parametrize('convolve', [ops.conv3x3, ops.plain_conv])
@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize(('height', 'width'), [(1, 2), (3, 4), (7, 10)])
def test_conv3x3_matches_loops(height, width, stride, convolve):
  x = RNG.normal(size=(2, height, width, 3))
  kernel = RNG.normal(size=(3, 3, 3, 5))
  y = convolve(jnp.float32(x), jnp.float32(kernel), stride=stride)
  np.testing.assert_allclose(y, _convolved(x, kernel, stride), atol=1e-5)


@pytest.mark.parametrize('convolve', [ops.depthwise_conv, ops.plain_conv])
@pytest.mark.parametrize('size', [3, 5])
def test_depthwise_conv_matches_loops(size, convolve):
  x, kernel = X, RNG.normal(size=(size, size, 1, 6))
  y = convolve(jnp.float32(x), jnp.float32(kernel))
  np.testing.assert_allclose(y, _convolved(x, kernel, 1), atol=2e-5)


def test_stride_two_pads_both_sides():
  """On 4x4 ones the corner sees 4 taps, an edge 6 and the inside 9."""
  y = ops.conv3x3(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), stride=2)
  np.testing.assert_array_equal(y[0, :, :, 0], [[4, 6], [6, 9]])


@pytest.mark.parametrize('side', [2, 64])
def test_a_bfloat16_kernel_gradient_is_accumulated_in_float32(side):
  """A bfloat16 accumulator would stop growing at 256."""
  x = jnp.ones((4096 // side**2, side, side, 1), jnp.bfloat16)
  kernel = jnp.ones((3, 3, 1, 1), jnp.float32)
  grad = jax.grad(lambda k: ops.depthwise_conv(x, k).sum(dtype=jnp.float32))(
      kernel
  )
  assert grad.dtype == jnp.float32
  np.testing.assert_array_equal(grad[1, 1, 0, 0], 4096)
  np.testing.assert_array_equal(grad[0, 1, 0, 0], 4096 - 4096 // side)
