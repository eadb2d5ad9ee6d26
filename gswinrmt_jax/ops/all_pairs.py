"""Attention over all pairs of tokens of a map at once.

Letters as in `axial`; `t` counts the tokens row by row, `t = row W + column`,
and a capital is the key side.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops.arrays import wide_dtype


def all_pairs_attention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    weigh: Callable[[Array], Array],
) -> Float[Array, 'b h w n d']:
  """Mixes the values of all tokens: `O[t] = sum_T weigh(q k^T)[t, T] V[T]`.

  Args:
    query: Queries.
    key: Keys.
    value: Values.
    weigh: The attention form: turns scores `[b n t T]` into weights.

  Returns:
    The mixed values, in `value.dtype`; scores are float32 at least.
  """
  batch, height, width, heads, dim = query.shape
  tokens = (batch, height * width, heads, dim)
  # Heads to the front by hand, as in `axial`.
  q, k, v = (x.reshape(tokens).swapaxes(1, 2) for x in (query, key, value))
  wide = wide_dtype(value.dtype)
  scores = jnp.einsum('bntd,bnTd->bntT', q, k, preferred_element_type=wide)
  weights = weigh(scores).astype(value.dtype)
  out = jnp.einsum('bntT,bnTd->bntd', weights, v, preferred_element_type=wide)
  return out.astype(value.dtype).swapaxes(1, 2).reshape(value.shape)


def manhattan(height: int, width: int) -> np.ndarray:
  """Distances `|row - ROW| + |column - COLUMN|` of all pairs, `[t, T]`."""
  row, column = np.divmod(np.arange(height * width), width)
  return sum(np.abs(p[:, None] - p[None, :]) for p in (row, column))
