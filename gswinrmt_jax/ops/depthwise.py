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
# On a CPU, the kernel's gradient is summed in two stages, the first of at most
# so many rows or images and of so many taps at a time. XLA has the channels in
# the outer loop; LLVM makes vectors of them only if it writes the inner one
# out, which it does up to eight terms, and the sums of nine taps fit into
# registers. Against sums of whole rows, in ms on one core: (8, 56, 56, 192) 3x3
# 31 -> 13, (8, 14, 14, 768) 3x3 11 -> 3, (8, 56, 56, 64) 5x5 24 -> 10.
_TERMS, _TAPS = 8, 9
# Of maps of at most so many tokens the first stage takes all of a map, or a row
# of a tiny one, of so many channels. What comes behind the convolution, such as
# a LayerNorm, has its gradient computed within these sums, and in the other
# form LLVM finds no vectors then: the gradient of `retention_compact` took 1.2
# times as long, while of larger maps, at 224 px, there is no difference.
_SMALL_MAP, _TINY_ROW, _GROUP = 64, 4, 16


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
  dtype = x.dtype
  if platform() == 'cpu':
    x = wide(x)  # Slices of 16 bits are not read as vectors: 12 -> 7 ms.
  # Whole-array slices of one padded map: XLA fuses them into a single loop.
  rows = {}
  for (u, v), view in _shifted_views(x, kernel.shape[0]):
    product = wide(view) * wide(kernel[u, v])[None, None]
    # Taps row by row: in one sum of 25, each waits for that before (6 -> 4 ms).
    rows[u] = rows[u] + product if u in rows else product
  return functools.reduce(operator.add, rows.values()).astype(dtype)


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
  """All taps `[t, c]`, some in one reduction, which reads the maps once.

  Separate sums are three to eight times slower on CPU and compile far longer.
  """
  # Cast before they are cut: bfloat16 slices took 92 ms, not 13.
  x, cotangent = wide(x), wide(cotangent)
  if x.shape[1] * x.shape[2] <= _SMALL_MAP:
    return _total_of_groups(x, cotangent, size)
  products = [view * cotangent for _, view in _shifted_views(x, size)]
  sums = []
  for first in range(0, len(products), _TAPS):
    sums += _sums_of_few(products[first : first + _TAPS])
  return jnp.stack([each.sum((0, 1, 2)) for each in sums])


def _total_of_groups(x: Array, cotangent: Array, size: int) -> Array:
  """All taps `[t, c]`, for groups of channels that the nearest cache holds."""
  rows = x.shape[2] <= _TINY_ROW
  x, cotangent = map(_channel_groups, (x, cotangent))
  products = [view * cotangent for _, view in _shifted_views(x, size)]
  sums = _sums(products, (3,) if rows else (2, 3))
  rest = (0, 2) if rows else (0,)
  return jnp.stack([each.sum(rest).reshape(-1) for each in sums])


def _channel_groups(x: Array) -> Array:
  """Splits channels into `[b, groups, h, w, 16]`, or one group."""
  *rest, channels = x.shape
  size = _GROUP if channels % _GROUP == 0 else channels
  return jnp.moveaxis(x.reshape(*rest, channels // size, size), -2, 1)


def _sums(maps: list[Array], axes: tuple[int, ...]) -> tuple[Array, ...]:
  """Adds maps of one shape up along axes, in one reduction."""
  return lax.reduce(
      maps,
      [jnp.zeros((), maps[0].dtype)] * len(maps),
      lambda left, right: tuple(map(operator.add, left, right)),
      dimensions=axes,
  )


def _sums_of_few(maps: list[Array]) -> tuple[Array, ...]:
  """Adds rows, or images, of maps of one shape up, some at a time.

  All rows where neither can be divided.
  """
  shape = list(maps[0].shape)
  terms, axis = max(
      (
          (terms, axis)
          for axis in (0, 1)
          for terms in range(2, _TERMS + 1)
          if shape[axis] % terms == 0
      ),
      default=(shape[1], 1),
  )
  shape[axis : axis + 1] = shape[axis] // terms, terms
  return _sums([each.reshape(shape) for each in maps], (axis + 1,))


_shift_conv.defvjp(_shift_conv_forward, _shift_conv_backward)
