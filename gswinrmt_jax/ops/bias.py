"""Biases, whose gradients are sums over thousands of tokens."""

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def add_bias(
    x: Float[Array, '*b c'], bias: Float[Array, ' c']
) -> Float[Array, '*b c']:
  """Adds it to each channel, in the dtype of the map.

  Automatic differentiation would sum its gradient in that dtype: in bfloat16 a
  sum of ones ends at 256 for each addend.

  Args:
    x: A map.
    bias: One number a channel.
  """
  return _forward(x, bias)[0]


def _forward(x, bias):
  # Nothing here calls what has a derivative by hand: forward mode, over the
  # reverse one, goes through it.
  return x + jnp.expand_dims(bias, range(x.ndim - 1)).astype(x.dtype), bias


def _backward(bias, cotangent):
  return summed(cotangent, bias)


def summed(
    gradient: Float[Array, '*b c'], bias: Float[Array, ' c']
) -> tuple[Float[Array, '*b c'], Float[Array, ' c']]:
  """Returns the gradient of a map, and of the bias that was added to it.

  Args:
    gradient: Of the sum of both.
    bias: Whose dtype the second result has; the sum is in float32 at least.
  """
  # A barrier: else the map is written in float32, for the sum.
  gradient = lax.optimization_barrier(gradient)
  wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
  return gradient, wide.sum(range(gradient.ndim - 1)).astype(bias.dtype)


add_bias.defvjp(_forward, _backward)
