"""Retention: softmax attention with a Manhattan decay in the logits."""

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import all_pairs, axial, rotary, score_fn
from gswinrmt_jax.ops.traced import traced_once


@traced_once(*axial.STATIC)
def retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '2 n'] | None,
    *,
    window: int | None = None,
    shift: int = 0,
    impl: str = 'banded',
    scaled: bool = True,
    slopes: Float[Array, ' n'] | None = None,
    absolute: bool = False,
    rotation: rotary.Rotation | None = None,
) -> Float[Array, 'b h w n d']:
  r"""Decomposed Manhattan self-attention (Gated-SwinRMT, eq. 3), both passes.

      A = softmax(q k^T / sqrt(d) + |i - j| log(gamma) + mask)

  along each row of a window, then along each column. Without a window this is
  RMT's decomposed form. RMT's paper multiplies by the decay after the softmax;
  its released code adds the logarithm before it, as here, so rows sum to one.

  Args:
    query: Queries.
    key: Keys.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for none.
    window: Nominal window; None for the whole row or column.
    shift: Nominal shift of the windows.
    impl: 'banded' or 'cyclic', see `axial.axial_attention`.
    scaled: Whether scores are divided by `sqrt(d)`.
    slopes: ALiBi slopes per head, times the signed distance `i - j`.
    absolute: Whether ALiBi takes `|i - j|` instead.
    rotation: What turns queries and keys; None for nothing.

  Returns:
    The mixed values, in `value.dtype`; softmax in float32 at least.
  """
  query, scale = axial.scaled_query(query, scaled)

  def weigh(scores, axis, size, mask):
    del size  # Rows are normalised by their own sum.
    scores = axial.biased(scores * scale, slopes, absolute)
    if log_decay is not None:
      distance = np.abs(axial.offsets(scores.shape[-1]))
      scores += axial.head_table(log_decay[axis], distance, scores)
    if mask is not None:
      scores = jnp.where(mask, scores, axial.MASKED)
    return score_fn.softmax(scores, value.dtype)

  return axial.axial_attention(
      query,
      key,
      value,
      weigh,
      window=window,
      shift=shift,
      impl=impl,
      rotation=rotation,
  )


@traced_once('scaled')
def full_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, ' n'] | None,
    *,
    scaled: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Manhattan self-attention over all tokens (RMT, eq. 5, as released).

      A = softmax(q k^T / sqrt(d) + (|row - ROW| + |col - COL|) log(gamma))

  Args:
    query: Queries, rotated already if they are to be.
    key: Keys, likewise.
    value: Values.
    log_decay: `log(gamma)` per head; None for none.
    scaled: Whether scores are divided by `sqrt(d)`.

  Returns:
    The mixed values, in `value.dtype`; softmax in float32 at least.
  """
  _, height, width, _, _ = query.shape
  query, scale = axial.scaled_query(query, scaled)

  def weigh(scores):
    scores *= scale
    if log_decay is not None:
      distance = all_pairs.manhattan(height, width)
      scores += axial.head_table(log_decay, distance, scores)
    return score_fn.softmax(scores, value.dtype)

  return all_pairs.all_pairs_attention(query, key, value, weigh)
