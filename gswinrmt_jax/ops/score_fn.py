"""From scores to weights: softmax and sigmoid that keep little, and narrow.

Their derivatives need one array of the scores' size, in the dtype of the
values; XLA by itself keeps float32, twice as wide. The barriers have it written
in that dtype: XLA would else write float32 and cast where it is read.
"""

import functools

import jax
from jax import lax
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import wide


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax(
    scores: Float[Array, '*b j'], dtype: jax.typing.DTypeLike
) -> Float[Array, '*b j']:
  r"""Softmax over the last axis.

      A = exp(S) / sum_j exp(S)        dS = A (dA - sum_j A dA / sum_j A)

  Args:
    scores: In float32 at least.
    dtype: Of the weights, and of the gradient that is handed on.

  Returns:
    The weights.
  """
  return jax.nn.softmax(scores, axis=-1).astype(dtype)


@softmax.defjvp
def _softmax_jvp(dtype, primals, tangents):
  (scores,), (tangent,) = primals, tangents
  weights = lax.optimization_barrier(softmax(scores, dtype))
  kept = wide(weights)
  tangent = _narrowed(tangent, dtype)
  share = kept
  if weights.dtype != scores.dtype:
    # Over their sum, which is not 1 once they are rounded: what is added to all
    # scores of a row, or to all of its weights' gradients, changes nothing.
    share = kept * (1 / kept.sum(-1, keepdims=True))
  mean = (share * tangent).sum(-1, keepdims=True)
  # Multiplied out: backwards, XLA then makes one kernel of both sums and what
  # comes before and behind them, as it knows it from softmax.
  return weights, (kept * tangent - kept * mean).astype(dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def sigmoid(scores: Float[Array, '*b'], dtype: jax.typing.DTypeLike) -> Array:
  r"""Sigmoid of each score.

      A = 1 / (1 + exp(-S))        dS = A (1 - A) dA

  What is kept is the slope `A (1 - A)`: of narrow weights that are almost 1,
  `1 - A` would be 0.

  Args:
    scores: In float32 at least.
    dtype: Of the slope that is kept, and of the gradient that is handed on.

  Returns:
    The weights, in the dtype of the scores: there are factors to come.
  """
  del dtype
  return jax.nn.sigmoid(scores)


@sigmoid.defjvp
def _sigmoid_jvp(dtype, primals, tangents):
  (scores,), (tangent,) = primals, tangents
  weights = jax.nn.sigmoid(scores)
  slope = weights * jax.nn.sigmoid(-scores)
  slope = lax.optimization_barrier(slope.astype(dtype))
  return weights, wide(slope) * _narrowed(tangent, dtype)


def _narrowed(tangent, dtype):
  """Returns the tangent as it is, rounded; backwards, the gradient."""
  narrow = lax.optimization_barrier(tangent.astype(dtype))
  return narrow.astype(tangent.dtype)
