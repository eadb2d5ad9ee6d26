"""The layers around attention: linear maps, convolutions, norms, GELU.

They return the dtype of `x`, except for batch statistics and scaled channels,
which are at least float32. Matmuls and convolutions take operands in that dtype
and accumulate in float32; everything else is computed in at least float32. On a
CPU, depthwise kernels keep their own dtype.

With `jax.checkpoint`, the gradients of norms and GELU save only their input,
which is in memory anyway, instead of several float32 maps.
"""

import functools
import math

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import cpu_convolutions, padding


def wide_dtype(dtype: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
  """Returns the dtype of sums and constants: at least float32."""
  return jnp.promote_types(dtype, jnp.float32)


def wide(x: Float[Array | np.ndarray, '*b']) -> Float[Array, '*b']:
  """Returns the array in at least float32."""
  return jnp.asarray(x, wide_dtype(x.dtype))


# Equations are jitted: a model calls one in every layer, and tracing it again
# for each layer of a deep model takes seconds of Python before XLA starts.
@jax.jit
def dense(
    x: Float[Array, '*b c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'] | None = None,
) -> Float[Array, '*b f']:
  """Applies a linear layer to each token, `y = x W + b`.

  Args:
    x: Tokens, in the dtype of the computation.
    kernel: `W`, cast to `x.dtype`.
    bias: `b`, as in `add_bias`; None for none.
  """
  # All tokens are the rows of one matrix: with separate axes, XLA's CPU backend
  # transposes the gradient in memory before the matmul for the kernel.
  y = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
  y = y.reshape(*x.shape[:-1], kernel.shape[-1])
  return y if bias is None else add_bias(y, bias)


@jax.jit
def add_bias(
    x: Float[Array, '*b c'], bias: Float[Array, ' c']
) -> Float[Array, '*b c']:
  """Adds a bias to each channel.

  The addition is in float32, so that the gradient of the bias is summed in
  float32: in bfloat16, a sum of 25,088 ones ends at 1,024 on a CPU.
  """
  return (wide(x) + _along_channels(bias, x)).astype(x.dtype)


@jax.jit
def scale_channels(
    x: Float[Array, '*b c'], scale: Float[Array, ' c']
) -> Float[Array, '*b c']:
  """Multiplies each channel by a scale (LayerScale); in at least float32."""
  return wide(x) * _along_channels(scale, x)


@jax.jit
@jax.checkpoint
def gelu(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """Computes the exact GELU, `x Phi(x)` with the normal CDF `Phi`."""
  z = wide(x)
  # As in PyTorch. With erfc, the lower tail would be exact, at several times
  # the cost, but the difference is far below the rounding error of the sums
  # that it enters.
  return (0.5 * z * (1 + lax.erf(z * math.sqrt(0.5)))).astype(x.dtype)


@jax.jit
@jax.checkpoint
def layer_norm(
    x: Float[Array, '*b c'],
    scale: Float[Array, ' c'] | None = None,
    bias: Float[Array, ' c'] | None = None,
    epsilon: float | Float[Array, ''] = 1e-6,
) -> Float[Array, '*b c']:
  """Applies LayerNorm over channels.

      y = (x - mean_c x) / sqrt(var_c x + epsilon) * scale + bias

  Args:
    x: Tokens.
    scale: Scale of each channel; None for 1.
    bias: Bias of each channel; None for 0.
    epsilon: Added to the variance.
  """
  # Two passes: `E[x^2] - E[x]^2` loses all digits where the mean is much larger
  # than the standard deviation.
  centred = wide(x) - wide(x).mean(-1, keepdims=True)
  variance = jnp.square(centred).mean(-1, keepdims=True)
  y = centred * lax.rsqrt(variance + jnp.asarray(epsilon, variance.dtype))
  if scale is not None:
    y *= _along_channels(scale, x)
  if bias is not None:
    y += _along_channels(bias, x)
  return y.astype(x.dtype)


@jax.jit
def batch_statistics(
    x: Float[Array, 'b h w c'], extents: padding.Extents = None
) -> tuple[Float[Array, ' c'], Float[Array, ' c']]:
  """Returns mean and biased variance of each channel over the batch.

  They take two passes, over the positions within `extents` (`ops.padding`).
  """
  average = functools.partial(padding.mean, extents=extents, axes=(0, 1, 2))

  @jax.checkpoint
  def variance(x, mean):
    return average(jnp.square(wide(x) - _along_channels(mean, x)))

  mean = average(wide(x))
  return mean, variance(x, mean)


@jax.jit
@jax.checkpoint
def batch_norm(
    x: Float[Array, 'b h w c'],
    mean: Float[Array, ' c'],
    variance: Float[Array, ' c'],
    scale: Float[Array, ' c'],
    bias: Float[Array, ' c'],
) -> Float[Array, 'b h w c']:
  """Applies BatchNorm with the given statistics, the batch's or running ones.

      y = (x - mean) / sqrt(variance + 1e-5) * scale + bias

  Args:
    x: Maps.
    mean: Mean of each channel.
    variance: Variance of each channel.
    scale: Scale of each channel.
    bias: Bias of each channel.
  """
  mean, factor, scale, bias = (
      _along_channels(each, x)
      for each in (mean, lax.rsqrt(variance + 1e-5), scale, bias)
  )
  return ((wide(x) - mean) * factor * scale + bias).astype(x.dtype)


@functools.partial(jax.jit, static_argnames='stride')
def conv3x3(
    x: Float[Array, 'b h w c'], kernel: Float[Array, '3 3 c f'], *, stride: int
) -> Float[Array, 'b H W f']:
  """Convolves to `ceil(h / stride)` rows and `ceil(w / stride)` columns.

      y[b, i, j] = sum_{u, v} x[b, s i + u - 1, s j + v - 1] kernel[u, v]

  The map is zero-padded by 1 on every side. 'SAME' would shift a convolution of
  stride 2 by a pixel at even sizes, which breaks released weights.

  Args:
    x: The map, in the dtype of the computation.
    kernel: The kernel, cast to `x.dtype`.
    stride: The stride `s`, 1 or 2.
  """
  compute = functools.partial(plain_conv, stride=stride)
  if not cpu_convolutions.leaves_few_positions(x.shape[1:3], stride):
    return compute(x, kernel)
  by_patches = functools.partial(cpu_convolutions.by_patches, stride=stride)
  return lax.platform_dependent(x, kernel, cpu=by_patches, default=compute)


@jax.jit
def depthwise_conv(
    x: Float[Array, 'b h w c'], kernel: Float[Array, 'k k 1 c']
) -> Float[Array, 'b h w c']:
  """Convolves each channel with its own kernel, zero-padded to the same size.

      y[b, i, j] = sum_{u, v} x[b, i + u - r, j + v - r] kernel[u, v, 0]

  for every channel, with `r = (k - 1) / 2` and zeros outside the map.

  Args:
    x: The map.
    kernel: Odd-sized kernels, in flax's layout for grouped convolutions.
  """
  # The form is that of the device on which a program runs, regardless of where
  # it was traced or compiled.
  return lax.platform_dependent(
      x, kernel, cpu=cpu_convolutions.by_shifts, default=plain_conv
  )


def plain_conv(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'k k _ f'],
    *,
    stride: int = 1,
) -> Float[Array, 'b H W f']:
  """Computes `conv3x3`, or a `depthwise_conv`, by XLA's own operation."""
  radius = kernel.shape[0] // 2
  return lax.conv_general_dilated(
      x,
      kernel.astype(x.dtype),
      window_strides=(stride, stride),
      padding=((radius, radius), (radius, radius)),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      feature_group_count=x.shape[-1] // kernel.shape[2],
  )


def _along_channels(vector, x):
  """Returns the vector with as many axes as `x`, in at least float32."""
  return jnp.expand_dims(wide(vector), range(x.ndim - 1))
