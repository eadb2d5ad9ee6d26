"""Biases, whose gradients are sums over thousands of tokens."""

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import along_channels, is_large, token_sums, wide


@jax.custom_vjp
def add_bias(
    x: Float[Array, '*b c'], bias: Float[Array, ' c']
) -> Float[Array, '*b c']:
  """Adds it to each channel, in the dtype of the map.

  Automatic differentiation would sum its gradient in that dtype. In bfloat16
  such sums stop growing: of 25,088 ones, on a CPU, at 1,024.

  Args:
    x: A map.
    bias: One number a channel.
  """
  return _forward(x, bias)[0]


def _forward(x, bias):
  # Nothing here calls what has a derivative by hand: forward mode, over the
  # reverse one, goes through it.
  return x + along_channels(bias, x).astype(x.dtype), bias


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
  rounded = wide(gradient)
  if rounded.dtype != gradient.dtype:
    # Changes no number. XLA would else take the map as it was before rounding,
    # and write that, for the sum; so it sums where it computes the map.
    info = jnp.finfo(gradient.dtype)
    rounded = lax.reduce_precision(rounded, info.nexp, info.nmant)
  if is_large(gradient):
    (total,) = token_sums(rounded)
  else:
    total = rounded.sum(range(gradient.ndim - 1))
  return gradient, total.astype(bias.dtype)


add_bias.defvjp(_forward, _backward)
