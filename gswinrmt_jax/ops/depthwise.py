"""Depthwise convolution, in the form that suits the backend.

One function, several ways to compute it. XLA's CPU backend expands a grouped
convolution densely and is some thirty times slower at it than `k * k` shifted
multiply-adds, which it fuses into one loop; cuDNN has kernels of its own.
"""

import functools
import operator

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

IMPLEMENTATIONS = ('auto', 'shift', 'conv')


def depthwise_conv(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'k k 1 c'],
    *,
    impl: str = 'auto',
) -> Float[Array, 'b h w c']:
  """Convolves each channel with its own kernel, zero-padded to the same size.

      y[b, i, j, c] = sum_{u, v} x[b, i + u - r, j + v - r, c] kernel[u, v, 0, c]

  with `r = (k - 1) / 2` and zeros outside the map.

  Args:
    x: The map.
    kernel: Odd-sized kernels, in flax's layout for grouped convolutions.
    impl: 'shift' adds shifted products and has a hand-written backward pass;
      'conv' is XLA's grouped convolution, with plain autodiff in both modes;
      'auto' takes 'shift' on CPU and 'conv' elsewhere.

  Returns:
    The convolved map in `x.dtype`, accumulated in float32 at least.

  Raises:
    ValueError: If `impl` is unknown or the kernel size even.
  """
  if impl not in IMPLEMENTATIONS:
    raise ValueError(f'depthwise {impl=} is not one of {IMPLEMENTATIONS}.')
  if kernel.shape[0] % 2 == 0:
    raise ValueError(f'The kernel size must be odd, not {kernel.shape[0]}.')
  if impl == 'auto':
    impl = 'shift' if jax.default_backend() == 'cpu' else 'conv'
  if impl == 'shift':
    return _shift_conv(x, kernel)
  radius = kernel.shape[0] // 2
  return lax.conv_general_dilated(
      x,
      kernel.astype(x.dtype),
      window_strides=(1, 1),
      padding=((radius, radius), (radius, radius)),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      feature_group_count=x.shape[-1],
  )


def _shifted_views(x: Array, size: int) -> list[Array]:
  """Returns the `size * size` shifted copies of `x`, row offset outermost."""
  _, height, width, _ = x.shape
  radius = size // 2
  padded = jnp.pad(x, ((0, 0), (radius, radius), (radius, radius), (0, 0)))
  return [
      padded[:, u : u + height, v : v + width]
      for u in range(size)
      for v in range(size)
  ]


def _sum_of_shifts(x: Array, kernel: Array) -> Array:
  """The convolution itself, accumulated in float32 at least."""
  size = kernel.shape[0]
  wide = jnp.promote_types(x.dtype, jnp.float32)
  taps = kernel.reshape(size * size, -1).astype(wide)
  # Whole-array slices of one padded map: XLA fuses them into a single loop.
  products = (
      view.astype(wide) * tap[None, None, None]
      for view, tap in zip(_shifted_views(x, size), taps, strict=True)
  )
  return functools.reduce(operator.add, products).astype(x.dtype)


@jax.custom_vjp
def _shift_conv(x: Array, kernel: Array) -> Array:
  return _sum_of_shifts(x, kernel)


def _shift_conv_forward(x, kernel):
  return _sum_of_shifts(x, kernel), (x, kernel)


def _shift_conv_backward(residuals, cotangent):
  """`dx` is the flipped convolution; `dkernel` one reduction over all taps."""
  x, kernel = residuals
  size = kernel.shape[0]
  dx = _sum_of_shifts(cotangent, kernel[::-1, ::-1]).astype(x.dtype)
  # A single variadic reduction reads the maps once; `k * k` separate sums are
  # three to eight times slower on CPU and compile far longer. Accumulating in
  # bfloat16 was 16 % off, hence the cast.
  wide = jnp.promote_types(x.dtype, jnp.float32)
  wide_cotangent = cotangent.astype(wide)
  products = tuple(
      view.astype(wide) * wide_cotangent for view in _shifted_views(x, size)
  )
  sums = lax.reduce(
      products,
      (jnp.zeros((), wide),) * len(products),
      lambda left, right: tuple(map(operator.add, left, right)),
      dimensions=(0, 1, 2),
  )
  dkernel = jnp.stack(sums).reshape(kernel.shape).astype(kernel.dtype)
  return dx, dkernel


_shift_conv.defvjp(_shift_conv_forward, _shift_conv_backward)
