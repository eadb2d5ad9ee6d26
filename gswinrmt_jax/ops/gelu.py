"""GELU, whose backward pass keeps its input alone."""

import math

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def biased_gelu(
    x: Float[Array, '*b c'], bias: Float[Array, ' c']
) -> Float[Array, '*b c']:
  r"""GELU of a product with its bias, `y = z Phi(z)` with `z = x + bias`.

  Phi is the normal distribution's, not an approximation.

      dx = dy (Phi(z) + z exp(-z^2 / 2) / sqrt(2 pi))

  The backward pass keeps `x`. Automatic differentiation keeps two more maps.

  Args:
    x: What a linear layer returns before its bias.
    bias: Of the layer.

  Returns:
    The activations, computed in float32 at least, in `x.dtype`.
  """
  z = _sum(x, bias)
  return (z * _normal_distribution(z)).astype(x.dtype)


def _sum(x, bias):
  return _wide(x) + jnp.expand_dims(_wide(bias), range(x.ndim - 1))


def _wide(x):
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _normal_distribution(x):
  # By erfc: 1 + erf loses all digits of the lower tail.
  return 0.5 * lax.erfc(-x * math.sqrt(0.5))


def _forward(x, bias):
  # Barriers: else XLA writes z and y in float32.
  y = lax.optimization_barrier(biased_gelu(x, bias))
  return y, (lax.optimization_barrier(x), bias)


def _backward(residuals, cotangent):
  x, bias = residuals
  z = _sum(x, bias)
  density = jnp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
  dx = _wide(cotangent) * (_normal_distribution(z) + z * density)
  dx = dx.astype(x.dtype)
  # In its dtype, as automatic differentiation has it: a sum in float32 would
  # have it written twice.
  dbias = lax.reduce(dx, jnp.zeros((), x.dtype), lax.add, range(x.ndim - 1))
  return dx, dbias.astype(bias.dtype)


biased_gelu.defvjp(_forward, _backward)
