"""How far a token looks: the weights that attention really gives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np


def effective_weights(
    mix: Callable[[Array], Array],
    value: Float[Array, 'b h w c'],
    heads: int,
    token: tuple[Array | int, Array | int],
) -> tuple[Float[Array, 'b h w c'], Float[Array, 'b n h w']]:
  r"""Weight that one token's output gives to the value of every token.

      O[i, j] = sum_I A_h[j, i, I] sum_J A_w[I, j, J] V[I, J]
      a[I, J] = A_h[j, i, I] A_w[I, j, J] = dO[i, j] / dV[I, J]

  per head, for the decomposed passes; the row of `A` for attention over all
  pairs. Attention is linear in its values and the same for all channels of a
  head, so the derivative of one channel is the weights, exactly, whatever the
  form, windows, shift or implementation: no equation is repeated here.

  Args:
    mix: Attention as a function of its values.
    value: The values; heads are blocks of channels.
    heads: `n`.
    token: Row and column of the token that looks, `(i, j)`.

  Returns:
    `mix(value)`, and the weights, 0 outside of the token's window.
  """
  row, column = token
  dim = value.shape[-1] // heads
  out, pull = jax.vjp(mix, value)
  one_channel = jnp.zeros_like(out).at[:, row, column, ::dim].set(1)
  (weights,) = pull(one_channel)
  return out, jnp.moveaxis(weights[..., ::dim], -1, 1)


def mean_distance(
    weights: Float[np.ndarray, 'n h w'], token: tuple[int, int]
) -> Float[np.ndarray, ' n']:
  """Mean Manhattan distance from `token`, in tokens, under the weights.

  They are normalised here: a sigmoid's need not sum to one. Of weights without
  softmax or sigmoid, which may be negative, it is the size that counts.
  """
  row, column = np.indices(weights.shape[1:])
  distance = np.abs(row - token[0]) + np.abs(column - token[1])
  weights = np.abs(weights.astype(np.float64))
  # A head whose sigmoids all underflow looks nowhere.
  total = np.maximum(weights.sum((1, 2)), np.finfo(np.float32).tiny)
  return (weights * distance).sum((1, 2)) / total


def decay_kernel(
    rates: Float[np.ndarray, 'passes n'], reach: tuple[int, int]
) -> Float[np.ndarray, 'n _ _']:
  """`gamma_h ** |dy| * gamma_w ** |dx|`, how each head fades with distance.

  Args:
    rates: `gamma` of the (width, height) pass, or the one of both.
    reach: Largest `|dy|` and `|dx|`.

  Returns:
    Rows from `dy = -reach[0]`, columns from `dx = -reach[1]`.
  """
  dy, dx = (np.abs(np.arange(-r, r + 1)) for r in reach)
  down = rates[-1, :, None, None] ** dy[:, None]
  across = rates[0, :, None, None] ** dx
  return down * across
