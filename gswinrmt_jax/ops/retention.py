"""Retention: softmax attention with a Manhattan decay in the logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import axial
from gswinrmt_jax.ops.equation import equation


@axial.attention_form('softmax')
@equation
def retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None = None,
    *,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = True,
    absolute: bool = False,
    impl: str = 'auto',
) -> Float[Array, 'b h w n d']:
  r"""Decomposed Manhattan self-attention (Gated-SwinRMT, eq. 3), both passes.

      A = softmax(q k^T / sqrt(d) + |i - j| log(gamma) + mask)

  along each row of a window, then along each column. Without a window this is
  RMT's decomposed form. RMT's paper multiplies by the decay after the softmax;
  its released code adds the logarithm before it, as here, so rows sum to one.

  Args:
    query: Queries, rotated already if they are to be.
    key: Keys, likewise.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for none.
    slopes: ALiBi slopes per head, times the signed distance `i - j`.
    window: Nominal window; None for the whole row or column.
    shift: Nominal shift of the windows.
    scaled: Whether scores are divided by `sqrt(d)`.
    absolute: Whether ALiBi takes `|i - j|` instead.
    impl: 'auto', 'banded' or 'cyclic', see `axial.axial_attention`.

  Returns:
    The mixed values, in `value.dtype`; softmax in float32 at least.

  Raises:
    ValueError: If a shape, the window, the shift or `impl` is wrong.
  """
  axial.check_heads('log_decay', log_decay, (2, query.shape[3]))
  scale = query.shape[-1] ** -0.5 if scaled else 1.0

  def weigh(scores, axis, size, mask):
    del size  # Rows are normalised by their own sum.
    scores = axial.add_alibi(scores * scale, slopes, absolute)
    if log_decay is not None:
      distance = np.abs(axial.offsets(scores.shape[-1]))
      scores += axial.times_distance(log_decay[axis], distance, scores)
    if mask is not None:
      scores = jnp.where(mask, scores, axial.MASKED)
    return jax.nn.softmax(scores)

  return axial.axial_attention(
      query, key, value, weigh, window=window, shift=shift, impl=impl
  )


@axial.attention_form('softmax', table=axial.FULL_FORMS)
@equation
def full_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
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

  Raises:
    ValueError: If a shape is wrong.
  """
  _, height, width, heads, _ = query.shape
  axial.check_heads('log_decay', log_decay, (heads,))
  scale = query.shape[-1] ** -0.5 if scaled else 1.0

  def weigh(scores):
    scores = scores * scale
    if log_decay is not None:
      distance = axial.manhattan(height, width)
      scores += axial.times_distance(log_decay, distance, scores)
    return jax.nn.softmax(scores)

  return axial.all_pairs_attention(query, key, value, weigh)
