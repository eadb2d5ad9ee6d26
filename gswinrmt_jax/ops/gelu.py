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

from gswinrmt_jax.ops.arrays import wide


@jax.custom_vjp
def gelu(x: Float[Array, '*b']) -> Float[Array, '*b']:
  """Returns GELU of each number, computed in float32 at least, in `x.dtype`."""
  return _gelu_forward(x)[0]


def _gelu_forward(x):
  return value(wide(x)).astype(x.dtype), x


def _gelu_backward(x, cotangent):
  dx = wide(cotangent) * slope(wide(x))
  return (dx.astype(x.dtype),)


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


gelu.defvjp(_gelu_forward, _gelu_backward)
