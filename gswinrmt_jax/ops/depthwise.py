"""Depthwise convolution, in the form that suits the backend.

One function, several ways to compute it. XLA's CPU backend expands a grouped
convolution densely and is some thirty times slower at it than `k * k` shifted
multiply-adds, which it fuses into one loop. On a GPU that loop takes in what
comes before and behind; cuDNN has kernels of its own.
"""

import functools
import operator

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import wide
from gswinrmt_jax.ops.backend import platform
from gswinrmt_jax.ops.kernel import with_gradient_in_order
from gswinrmt_jax.ops.launches import in_one_launch
from gswinrmt_jax.ops.traced import traced_once

IMPLEMENTATIONS = ('auto', 'shift', 'conv')

# On a GPU, the kernel's gradient of maps of more tokens is the library's: as
# shifted products it reads the map once for each tap.
_FEW_TOKENS = 64
# On a CPU, the kernel's gradient is summed in two stages: of so many channels
# at a time, and of one row or, if it is small but not tiny, one map, which then
# stay in the nearest cache; and over the rest. XLA goes through all of a sum
# for one channel, then for the next. Against one stage of 64 channels, in ms on
# one core: (8, 56, 56, 192) 3x3 97 -> 36, (8, 28, 28, 384) 3x3 34 -> 12,
# (8, 56, 56, 64) 5x5 63 -> 24, (128, 8, 8, 256) 3x3 25 -> 12.
_GROUP = 16
_LARGE_MAP, _TINY_ROW = 256, 4  # tokens


@traced_once('impl')
def depthwise_conv(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'k k 1 c'],
    *,
    impl: str = 'auto',
) -> Float[Array, 'b h w c']:
  """Convolves each channel with its own kernel, zero-padded to the same size.

      y[b, i, j] = sum_{u, v} x[b, i + u - r, j + v - r] kernel[u, v, 0]

  for every channel, with `r = (k - 1) / 2` and zeros outside the map.

  Args:
    x: The map.
    kernel: Odd-sized kernels, in flax's layout for grouped convolutions.
    impl: 'shift' adds shifted products and has a hand-written backward pass,
      which on a GPU leaves the kernel's gradient of all but small maps to the
      library; 'conv' is XLA's grouped convolution; 'auto' takes 'shift'.

  Returns:
    The convolved map in `x.dtype`, accumulated in float32 at least.

  Raises:
    ValueError: If `impl` is unknown or the kernel size even.
  """
  if impl not in IMPLEMENTATIONS:
    raise ValueError(f'depthwise {impl=} is not one of {IMPLEMENTATIONS}.')
  if kernel.shape[0] % 2 == 0:
    raise ValueError(f'The kernel size must be odd, not {kernel.shape[0]}.')
  return _library_conv(x, kernel) if impl == 'conv' else _shift_conv(x, kernel)


def _library_conv(x: Array, kernel: Array) -> Array:
  radius = kernel.shape[0] // 2
  return lax.conv_general_dilated(
      x,
      with_gradient_in_order(kernel).astype(x.dtype),
      window_strides=(1, 1),
      padding=((radius, radius), (radius, radius)),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      feature_group_count=x.shape[-1],
  )


@traced_once()  # for the result, for the forward pass and for `dx`
def _sum_of_shifts(x: Array, kernel: Array) -> Array:
  """The convolution itself, accumulated in float32 at least."""
  # Whole-array slices of one padded map: XLA fuses them into a single loop.
  products = (
      wide(view) * wide(kernel[u, v])[None, None]
      for (u, v), view in _shifted_views(x, kernel.shape[0])
  )
  return functools.reduce(operator.add, products).astype(x.dtype)


def _shifted_views(x: Array, size: int) -> list[tuple[tuple[int, int], Array]]:
  """Each tap `(u, v)` that meets the map, with the map as that tap sees it.

  Args:
    x: `[..., h, w, c]`.
    size: Side of the kernel.

  Returns:
    Taps farther from the centre than the map is wide see zeros only and are
    left out: of a 5x5 kernel, 16 taps on a 2x2 map.
  """
  *batch, height, width, _ = x.shape
  radius = size // 2
  pads = [(0, 0)] * len(batch) + [(radius, radius)] * 2 + [(0, 0)]
  padded = jnp.pad(x, pads)
  return [
      ((u, v), padded[..., u : u + height, v : v + width, :])
      for u in range(size)
      for v in range(size)
      if abs(u - radius) < height and abs(v - radius) < width
  ]


@jax.custom_vjp
def _shift_conv(x: Array, kernel: Array) -> Array:
  return _sum_of_shifts(x, kernel)


def _shift_conv_forward(x, kernel):
  return _sum_of_shifts(x, kernel), (x, kernel)


def _shift_conv_backward(residuals, cotangent):
  """`dx` is the flipped convolution, `dkernel` a sum over batch and map."""
  x, kernel = residuals
  dx = _sum_of_shifts(cotangent, kernel[::-1, ::-1]).astype(x.dtype)
  return dx, _kernel_gradient(x, cotangent, kernel)


def _kernel_gradient(x: Array, cotangent: Array, kernel: Array) -> Array:
  """`dkernel[u, v] = sum_{b, i, j} x[b, i + u - r, j + v - r] dy[b, i, j]`.

  Accumulated in float32: in bfloat16 it was 16 % off.
  """
  size = kernel.shape[0]
  if platform() == 'cpu':
    sums = _total_on_cpu(x, cotangent, size)
  elif x.shape[1] * x.shape[2] <= _FEW_TOKENS:
    sums = _total_on_gpu(x, cotangent, size)
  else:
    _, pull = jax.vjp(lambda kernel: _library_conv(x, kernel), kernel)
    return pull(cotangent)[0]
  # Taps that meet the map are a rectangle in the middle.
  rows, columns = (min(size, 2 * extent - 1) for extent in x.shape[1:3])
  pads = [((size - n) // 2,) * 2 for n in (rows, columns)]
  gradient = jnp.pad(
      sums.reshape(rows, columns, 1, -1), (*pads, (0, 0), (0, 0))
  )
  if gradient.size > sums.size:  # Not a sum any more.
    gradient = in_one_launch(gradient, 'gradients')
  return gradient.astype(kernel.dtype)


def _total_on_gpu(x: Array, cotangent: Array, size: int) -> Array:
  """All taps `[t, c]` in one reduction of an array that is not written.

  A variadic one has each of its products written in front of it.
  """
  views = jnp.stack([view for _, view in _shifted_views(x, size)])
  products = wide(views) * wide(cotangent)[None]
  return products.sum((1, 2, 3))


def _total_on_cpu(x: Array, cotangent: Array, size: int) -> Array:
  """All taps in one variadic reduction, which reads the maps once.

  Separate sums are three to eight times slower on CPU and compile far longer.
  """
  height, width = x.shape[1:3]
  rows = height * width > _LARGE_MAP or width <= _TINY_ROW
  x, cotangent = (_channel_groups(wide(m)) for m in (x, cotangent))
  products = tuple(view * cotangent for _, view in _shifted_views(x, size))
  sums = lax.reduce(
      products,
      (jnp.zeros((), x.dtype),) * len(products),
      lambda left, right: tuple(map(operator.add, left, right)),
      dimensions=(3,) if rows else (2, 3),
  )
  rest = (0, 2) if rows else (0,)
  return jnp.stack([each.sum(rest).reshape(-1) for each in sums])


def _channel_groups(x: Array) -> Array:
  """Splits channels into `[b, groups, h, w, 16]`, or one group."""
  *rest, channels = x.shape
  size = _GROUP if channels % _GROUP == 0 else channels
  return jnp.moveaxis(x.reshape(*rest, channels // size, size), -2, 1)


_shift_conv.defvjp(_shift_conv_forward, _shift_conv_backward)
