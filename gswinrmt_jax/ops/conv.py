"""Dense 3x3 convolution, padded by 1 on every side whatever the stride."""

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.backend import platform
from gswinrmt_jax.ops.kernel import with_gradient_in_order
from gswinrmt_jax.ops.traced import traced_once

# XLA's CPU convolution is up to 40 times slower than a matrix product where
# few output positions are left: forward and backward at 2x2 -> 1x1, 256 to
# 512 channels, batch 128, took 313 ms against 18 ms; 4x4 -> 2x2 67 against 11;
# 16x16 -> 8x8 14 against 17 (two cores).
_FEW_POSITIONS = 16


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
  kernel = with_gradient_in_order(kernel).astype(x.dtype)
  height, width = (-(-extent // stride) for extent in x.shape[1:3])
  if platform() == 'cpu' and height * width <= _FEW_POSITIONS:
    return _patches(x, height, width, stride) @ kernel.reshape(
        -1, kernel.shape[-1]
    )
  return lax.conv_general_dilated(
      x,
      kernel,
      window_strides=(stride, stride),
      padding=((1, 1), (1, 1)),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


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
