"""From scores to weights: softmax and sigmoid that keep what they return.

Their derivatives need nothing but the weights, in the dtype of the values. What
XLA keeps by itself are float32 arrays of the scores' size, twice as wide. The
barriers have them written in that dtype and read so: XLA would else write
float32 and cast where it is read.
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax(
    scores: Float[Array, '*b j'], dtype: jax.typing.DTypeLike
) -> Float[Array, '*b j']:
  r"""Softmax over the last axis.

      A = exp(S) / sum_j exp(S)        dS = A (dA - sum_j A dA)

  Args:
    scores: In float32 at least.
    dtype: Of the weights, and of the gradient that is handed on.

  Returns:
    The weights.
  """
  return jax.nn.softmax(scores, axis=-1).astype(dtype)


@softmax.defjvp
def _softmax_jvp(dtype, primals, tangents):
  weights = lax.optimization_barrier(softmax(*primals, dtype))
  wide, (tangent,) = _wide(weights), tangents
  tangent = _narrowed(tangent, dtype)
  # Over their sum, which is not 1 once they are rounded: what is added to all
  # scores of a row, or to all of its weights' gradients, changes nothing.
  mean = (wide * tangent).sum(-1, keepdims=True) / wide.sum(-1, keepdims=True)
  return weights, (wide * (tangent - mean)).astype(dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def sigmoid(
    scores: Float[Array, '*b'], dtype: jax.typing.DTypeLike
) -> Float[Array, '*b']:
  r"""Sigmoid of each score.

      A = 1 / (1 + exp(-S))        dS = A (1 - A) dA

  Args:
    scores: In float32 at least.
    dtype: As for `softmax`.

  Returns:
    The weights.
  """
  return jax.nn.sigmoid(scores).astype(dtype)


@sigmoid.defjvp
def _sigmoid_jvp(dtype, primals, tangents):
  weights = lax.optimization_barrier(sigmoid(*primals, dtype))
  wide, (tangent,) = _wide(weights), tangents
  tangent = wide * (1 - wide) * _narrowed(tangent, dtype)
  return weights, tangent.astype(dtype)


def _narrowed(tangent, dtype):
  """Has it, and backwards the gradient, written in that dtype."""
  narrow = lax.optimization_barrier(tangent.astype(dtype))
  return narrow.astype(tangent.dtype)


def _wide(x):
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))
