"""Dense 3x3 convolution, padded by 1 on every side whatever the stride."""

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import token_product
from gswinrmt_jax.ops.backend import platform
from gswinrmt_jax.ops.kernel import with_gradient_in_order
from gswinrmt_jax.ops.traced import traced_once

# XLA's CPU convolution is up to 40 times slower than a matrix product where
# few output positions are left: forward and backward at 2x2 -> 1x1, 256 to
# 512 channels, batch 128, took 313 ms against 18 ms; 4x4 -> 2x2 67 against 11
# (two cores); 6x4 -> 3x2 172 against 16, 6x6 -> 3x3 32 against 33 (one).
_FEW_POSITIONS = 8
# The gradient of its kernel takes longer than a product, but for an image: with
# 32 to 32 channels at 112x112, batch 8, 92 ms against 72; 64 to 128 at 56x56,
# stride 2, 41 against 16; 3 to 32 at 224x224, stride 2, 12 against 20.
_FEW_CHANNELS = 8


@traced_once('stride')
def conv3x3(
    x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f'], *, stride: int
) -> Float[Array, 'b H W f']:
  """Convolves to `ceil(extent / stride)` rows and columns.

      y[b, i, j] = sum_{u, v} x[b, s i + u - 1, s j + v - 1] kernel[u, v]

  'SAME' padding would shift a convolution of stride 2 by one pixel at even
  extents, which released weights do not survive.

  Args:
    x: The map, in the dtype of the computation.
    kernel: Taps, cast to `x.dtype`.
    stride: 1 or 2.
  """
  if platform() == 'cpu':
    height, width = (-(-extent // stride) for extent in x.shape[1:3])
    if height * width <= _FEW_POSITIONS:
      kernel = kernel.astype(x.dtype).reshape(-1, kernel.shape[-1])
      return _patches(x, height, width, stride) @ kernel
    if x.shape[-1] >= _FEW_CHANNELS:
      return _conv_on_cpu(x, kernel, stride)
  kernel = with_gradient_in_order(kernel)
  return _library_conv(x, kernel.astype(x.dtype), stride)


def _library_conv(x: Array, kernel: Array, stride: int) -> Array:
  return lax.conv_general_dilated(
      x,
      kernel,
      window_strides=(stride, stride),
      padding=((1, 1), (1, 1)),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv_on_cpu(x: Array, kernel: Array, stride: int) -> Array:
  return _forward_on_cpu(x, kernel, stride)[0]


def _forward_on_cpu(x, kernel, stride):
  return _library_conv(x, kernel.astype(x.dtype), stride), (x, kernel)


def _backward_on_cpu(stride, residuals, dy):
  x, kernel = residuals
  narrow = kernel.astype(x.dtype)
  _, pull = jax.vjp(lambda x: _library_conv(x, narrow, stride), x)
  return *pull(dy), _kernel_gradient(x, dy, stride).astype(kernel.dtype)


def _kernel_gradient(x: Array, dy: Array, stride: int) -> Array:
  """`dkernel[u, v] = sum_{b, i, j} x[b, s i + u - 1, s j + v - 1] dy[b, i, j]`.

  All taps in one product, added up in float32 at least.
  """
  height, width, features = dy.shape[1:]
  channels = x.shape[-1]
  if stride == 1:
    # Columns move the map, rows its gradient: three of each, not nine of one.
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    dy = jnp.pad(dy, ((0, 0), (2, 2), (0, 0), (0, 0)))
    columns = [x[:, :, v : v + width] for v in range(3)]
    rows = [dy[:, 2 - u : 4 - u + height] for u in range(3)]
    x, dy = (jnp.concatenate(maps, axis=-1) for maps in (columns, rows))
    taps = _product(x, dy).reshape(3, channels, 3, features)
    return taps.transpose(2, 0, 1, 3)
  patches = _patches(x, height, width, stride)
  taps = _product(dy, patches).reshape(features, 3, 3, channels)
  return taps.transpose(1, 2, 3, 0)


def _product(left: Array, right: Array) -> Array:
  """`token_product` of matrices: with their axes XLA turns maps around."""
  return token_product(*(m.reshape(-1, m.shape[-1]) for m in (left, right)))


def _patches(x: Array, height: int, width: int, stride: int) -> Array:
  """The nine inputs of each output position, `[b, H, W, 9 c]`."""
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  rows, columns = stride * (height - 1) + 1, stride * (width - 1) + 1
  return jnp.concatenate(
      [
          padded[:, u : u + rows : stride, v : v + columns : stride]
          for u in range(3)
          for v in range(3)
      ],
      axis=-1,
  )


_conv_on_cpu.defvjp(_forward_on_cpu, _backward_on_cpu)
