"""Depthwise convolution: loops, both forms, gradients to second order."""

import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.ops import backend

B, H, W, C = 2, 4, 5, 3


def _inputs(size, dtype=np.float32, shape=(B, H, W, C)):
  rng = np.random.default_rng(0)
  x = rng.normal(size=shape).astype(dtype)
  kernel = rng.normal(size=(size, size, 1, shape[-1])).astype(dtype)
  return jnp.asarray(x), jnp.asarray(kernel)


def _loops(x, kernel):
  radius = kernel.shape[0] // 2
  out = np.zeros(x.shape)
  for i, j in np.ndindex(H, W):
    for u, v in np.ndindex(kernel.shape[:2]):
      row, column = i + u - radius, j + v - radius
      if 0 <= row < H and 0 <= column < W:
        out[:, i, j] += x[:, row, column] * kernel[u, v, 0]
  return out


@pytest.mark.parametrize('impl', ['shift', 'conv'])
@pytest.mark.parametrize('size', [3, 5])
def test_matches_loops(size, impl):
  x, kernel = _inputs(size)
  actual = ops.depthwise_conv(x, kernel, impl=impl)
  np.testing.assert_allclose(
      actual, _loops(np.float64(x), np.float64(kernel)), atol=1e-5
  )


@pytest.mark.parametrize('size', [3, 5])
@pytest.mark.parametrize(
    'shape',
    [
        pytest.param((B, H, W, C), id='a small map'),
        pytest.param((B, 1, 2, C), id='smaller than the kernel'),
        pytest.param((B, 2, 3, 128), id='groups of channels, by rows'),
        pytest.param((B, 4, 6, 32), id='groups of channels, by maps'),
        pytest.param((B, 12, 7, C), id='six rows at a time'),
        pytest.param((B, 16, 5, C), id='eight rows at a time'),
        pytest.param((5, 2, 33, C), id='five images at a time'),
        pytest.param((1, 11, 7, C), id='no way to divide it'),
    ],
)
def test_forms_agree(size, shape):
  """Gradients of kernels in all orders in which a CPU adds them up."""
  x, kernel = _inputs(size, shape=shape)
  np.testing.assert_allclose(
      ops.depthwise_conv(x, kernel, impl='shift'),
      ops.depthwise_conv(x, kernel, impl='conv'),
      atol=2e-5,
  )
  cotangent = jnp.asarray(np.random.default_rng(1).normal(size=x.shape))

  def gradients(impl):
    def loss(x, kernel):
      return jnp.sum(ops.depthwise_conv(x, kernel, impl=impl) * cotangent)

    return jax.grad(loss, (0, 1))(x, kernel)

  for ours, autodiff in zip(gradients('shift'), gradients('conv'), strict=True):
    np.testing.assert_allclose(ours, autodiff, atol=2e-5)


@pytest.mark.parametrize('shape', [(B, H, W, C), (B, 1, 2, C), (B, 9, 10, C)])
def test_the_kernel_gradient_of_a_gpu_is_the_same(shape):
  """By shifts, also on tiny maps, and by the library on those of 90 tokens."""
  x, kernel = _inputs(5, shape=shape)
  cotangent = jnp.asarray(np.random.default_rng(1).normal(size=x.shape))

  def gradient():
    def loss(kernel):
      out = ops.depthwise_conv(x, kernel, impl='shift')
      return jnp.sum(out * cotangent)

    return jax.grad(loss)(kernel)

  ours = gradient()
  with backend.tracing_for('gpu'):
    np.testing.assert_allclose(gradient(), ours, atol=2e-5)


def test_custom_gradient_in_float64():
  with jax.enable_x64(True):
    x, kernel = _inputs(3, np.float64)
    check_grads(
        jax.jit(lambda x, k: ops.depthwise_conv(x, k, impl='shift')),
        (x, kernel),
        order=2,
        modes=['rev'],
    )


def test_hessian_vector_products_both_ways():
  """Reverse over reverse with 'shift', forward over reverse with 'conv'."""
  x, kernel = _inputs(3)
  direction = jnp.ones_like(kernel)

  def loss(kernel, impl):
    return jnp.sum(jnp.tanh(ops.depthwise_conv(x, kernel, impl=impl)))

  reverse = jax.grad(lambda k: jnp.vdot(jax.grad(loss)(k, 'shift'), direction))(
      kernel
  )
  _, forward = jax.jvp(
      lambda k: jax.grad(loss)(k, 'conv'), (kernel,), (direction,)
  )
  np.testing.assert_allclose(reverse, forward, atol=1e-4)


def test_bfloat16_kernel_gradient_is_accumulated_in_float32():
  """A bfloat16 accumulator would stop growing at 256."""
  x = jnp.ones((1, 64, 64, 1), jnp.bfloat16)
  kernel = jnp.ones((3, 3, 1, 1), jnp.float32)
  grad = jax.grad(
      lambda k: ops.depthwise_conv(x, k, impl='shift').sum(dtype=jnp.float32)
  )(kernel)
  assert grad.dtype == jnp.float32
  np.testing.assert_array_equal(grad[1, 1, 0, 0], 4096)
  np.testing.assert_array_equal(grad[0, 1, 0, 0], 4096 - 64)


def test_bad_arguments_are_refused():
  x, kernel = _inputs(3)
  with pytest.raises(ValueError, match='fast'):
    ops.depthwise_conv(x, kernel, impl='fast')
  with pytest.raises(ValueError, match='odd'):
    ops.depthwise_conv(x, kernel[:2, :2], impl='shift')
