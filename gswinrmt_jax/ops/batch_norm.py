"""BatchNorm by the batch's own statistics, with a backward pass by hand."""

import functools

import jax
from jax import lax
from jaxtyping import Array, Float

from gswinrmt_jax.ops import gelu as gelu_lib
from gswinrmt_jax.ops.arrays import along_channels, image_sums, wide
from gswinrmt_jax.ops.traced import traced_once


@traced_once('epsilon', 'gelu')
def batch_norm(
    x: Float[Array, 'b h w c'],
    scale: Float[Array, ' c'],
    bias: Float[Array, ' c'],
    *,
    epsilon: float,
    gelu: bool = False,
) -> tuple[Float[Array, 'b h w c'], Float[Array, ' c'], Float[Array, ' c']]:
  r"""Normalises each channel over the batch.

      x' = (x - mean) / sigma    y = x' scale + bias    [y = GELU(y)]

  with `sigma = sqrt(var + epsilon)` and the biased variance. The backward pass
  keeps `x`, which the layer in front has written, and numbers of a channel:

      dx = scale / sigma (dy - mean dy - x' mean(dy x'))

  Args:
    x: Maps.
    scale: Of the normalised channels.
    bias: Added to them.
    epsilon: Added to the variance.
    gelu: Whether GELU follows.

  Returns:
    The maps, computed in float32 at least, in `x.dtype`; the channels' mean and
    variance, which have no gradient of their own.
  """
  return _batch_norm(x, scale, bias, epsilon, gelu)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _batch_norm(x, scale, bias, epsilon, gelu):
  return _forward(x, scale, bias, epsilon, gelu)[0]


def _forward(x, scale, bias, epsilon, gelu):
  mean, variance = _statistics(x)
  residuals = x, mean, lax.rsqrt(variance + epsilon), scale, bias
  y = _affine(_normalized(*residuals[:3]), scale, bias)
  if gelu:
    y = gelu_lib.value(y)
  return (y.astype(x.dtype), mean, variance), residuals


def _backward(epsilon, gelu, residuals, cotangents):
  del epsilon  # It is in the deviation.
  x, mean, inverse, scale, bias = residuals
  normalized, dy = _normalized(x, mean, inverse), cotangents[0]
  if gelu:
    slope = gelu_lib.slope(_affine(normalized, scale, bias))
    # A barrier: else it is written in float32.
    dy = lax.optimization_barrier((wide(dy) * slope).astype(x.dtype))
  dy = wide(dy)
  # One by one: here XLA makes one kernel of them by itself.
  dscale, dbias = (each.sum((0, 1, 2)) for each in (dy * normalized, dy))
  count = x.size // x.shape[-1]
  common = _affine(normalized, dscale / count, dbias / count)
  dx = along_channels(scale * inverse, x) * (dy - common)
  return (
      dx.astype(x.dtype),
      dscale.astype(scale.dtype),
      dbias.astype(bias.dtype),
  )


def _statistics(x):
  """Returns mean and variance of each channel, float32 at least, in one pass.

  Of each image, with its first pixel taken off before, as in LayerNorm; then of
  all images, from the variance within and between them.
  """
  first = wide(x[:, :1, :1])
  shifted = wide(x) - first
  mean, square = (
      total / (x.shape[1] * x.shape[2])
      for total in image_sums(shifted, shifted * shifted)
  )
  within = square - mean * mean
  origin = first[0, 0, 0]
  mean += first[:, 0, 0] - along_channels(origin, mean)
  overall = mean.mean(0)
  between = mean - along_channels(overall, mean)
  return origin + overall, (within + between * between).mean(0)


def _normalized(x, mean, inverse):
  return (wide(x) - along_channels(mean, x)) * along_channels(inverse, x)


def _affine(x, scale, bias):
  return x * along_channels(scale, x) + along_channels(bias, x)


_batch_norm.defvjp(_forward, _backward)
