"""GELU, whose backward pass keeps its input alone.

    y = x Phi(x)        dx = dy (Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi))

with the normal distribution's Phi, not an approximation. Automatic
differentiation keeps two maps of the size of `x` instead.
"""

import math

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import bias as bias_lib
from gswinrmt_jax.ops.arrays import along_channels, wide
from gswinrmt_jax.ops.backend import platform


@jax.custom_vjp
def gelu(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """Returns GELU of each number, computed in float32 at least, in `x.dtype`."""
  return _gelu_forward(x)[0]


def _gelu_forward(x):
  return value(wide(x)).astype(x.dtype), x


def _gelu_backward(x, cotangent):
  dx = wide(cotangent) * slope(wide(x))
  return (dx.astype(x.dtype),)


@jax.custom_vjp
def biased_gelu(
    x: Float[Array, '*b c'], bias: Float[Array, ' c']
) -> Float[Array, '*b c']:
  """GELU of `x + bias`, the sum in float32 at least as well.

  The backward pass keeps `x`, which is written anyway, not the sum.

  Args:
    x: What a linear layer returns before its bias.
    bias: Of the layer.

  Returns:
    The activations, in `x.dtype`.
  """
  return biased_forward(x, bias)[0]


def biased_forward(
    x: Float[Array, '*b c'], bias: Float[Array, ' c']
) -> tuple[
    Float[Array, '*b c'], tuple[Float[Array, '*b c'], Float[Array, ' c']]
]:
  """Returns it and what `biased_gradient` needs."""
  # Barriers: else XLA writes the sum and the result in float32.
  y = lax.optimization_barrier(value(_sum(x, bias)).astype(x.dtype))
  return y, (lax.optimization_barrier(x), bias)


def biased_gradient(
    x: Float[Array, '*b c'],
    bias: Float[Array, ' c'],
    cotangent: Float[Array | np.ndarray, '*b c'],
) -> Float[Array, '*b c']:
  """Returns that of `x`; summed over tokens, it is that of the bias."""
  dx = wide(cotangent) * slope(_sum(x, bias))
  dx = dx.astype(x.dtype)
  # A barrier: else a GPU's is written in float32 where a depthwise convolution
  # comes before it.
  return dx if platform() == 'cpu' else lax.optimization_barrier(dx)


def _biased_backward(residuals, cotangent):
  dx = biased_gradient(*residuals, cotangent)
  return bias_lib.summed(dx, residuals[1])


def value(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """GELU itself, for what has a derivative by hand."""
  return x * _normal_distribution(x)


def slope(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """Its derivative."""
  density = jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
  return _normal_distribution(x) + x * density


def _normal_distribution(x):
  # As PyTorch has it. By erfc the lower tail would keep its digits, all of them
  # far below the rounding of what they are added to, at a multiple of the time.
  return 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


def _sum(x, bias):
  return wide(x) + along_channels(wide(bias), x)


gelu.defvjp(_gelu_forward, _gelu_backward)
biased_gelu.defvjp(biased_forward, _biased_backward)
