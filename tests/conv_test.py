"""The 3x3 convolution, above and below the size where its form changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import ops


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize(('height', 'width'), [(1, 2), (3, 4), (7, 10)])
def test_matches_loops(height, width, stride):
  """(7, 10) is a convolution, the smaller maps a product of patches."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, height, width, 3))
  kernel = rng.normal(size=(3, 3, 3, 5))
  rows, columns = -(-height // stride), -(-width // stride)
  expected = np.zeros((2, rows, columns, 5))
  for i, j, u, v in np.ndindex(rows, columns, 3, 3):
    row, column = stride * i + u - 1, stride * j + v - 1
    if 0 <= row < height and 0 <= column < width:
      expected[:, i, j] += x[:, row, column] @ kernel[u, v]
  actual = ops.conv3x3(jnp.float32(x), jnp.float32(kernel), stride=stride)
  np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_stride_two_pads_both_sides():
  """All ones over 4x4: the corner sees 4 taps, an edge 6, the inside 9."""
  y = ops.conv3x3(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), stride=2)
  np.testing.assert_array_equal(y[0, :, :, 0], [[4, 6], [6, 9]])


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize(
    'shape',
    [
        pytest.param((2, 4, 6, 3), id='few channels, patches'),
        pytest.param((2, 3, 2, 8), id='patches'),
        pytest.param((2, 7, 10, 3), id='few channels'),
        pytest.param((2, 7, 10, 8), id='one product'),
        pytest.param((1, 8, 7, 8), id='one product, the other way odd'),
    ],
)
def test_gradients_are_those_of_the_convolution(shape, stride):
  rng = np.random.default_rng(1)
  x = jnp.float32(rng.normal(size=shape))
  kernel = jnp.float32(rng.normal(size=(3, 3, shape[-1], 5)))

  def reference(x, kernel):
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        ((1, 1), (1, 1)),
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )

  def grads(function):
    return jax.grad(lambda *a: jnp.sum(jnp.sin(function(*a))), (0, 1))(
        x, kernel
    )

  ours = grads(lambda x, k: ops.conv3x3(x, k, stride=stride))
  for actual, expected in zip(ours, grads(reference), strict=True):
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize('stride', [1, 2])
def test_a_bfloat16_kernel_gradient_is_accumulated_in_float32(stride):
  """A bfloat16 accumulator would stop growing at 256."""
  x = jnp.ones((1, 64, 64, 8), jnp.bfloat16)
  kernel = jnp.ones((3, 3, 8, 5), jnp.float32)
  grad = jax.grad(
      lambda k: ops.conv3x3(x, k, stride=stride).sum(dtype=jnp.float32)
  )(kernel)
  across = 64 // stride
  assert grad.dtype == jnp.float32
  np.testing.assert_array_equal(grad[1, 1], across**2)
  np.testing.assert_array_equal(grad[0, 1], across**2 - across)
  lost = across if stride == 1 else 0  # behind the last column
  np.testing.assert_array_equal(grad[1, 2], across**2 - lost)
