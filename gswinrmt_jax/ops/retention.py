"""Retention: softmax attention with a Manhattan decay in the logits.

Gated-SwinRMT, eq. 3; over all pairs of tokens, RMT, eq. 5.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops import axial, padding, positions
from gswinrmt_jax.ops.equation import equation


def _weigh(scores, decay, mask, size):
  """Returns `softmax(scores + distance log(gamma))` over unmasked pairs."""
  del size  # Rows are normalised by their own sum.
  if decay is not None:
    scores += decay
  if mask is not None:
    scores = jnp.where(mask, scores, axial.MASKED)
  return jax.nn.softmax(scores)


@axial.attention_form('softmax')
@equation
def retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None = None,
    extents: padding.Extents = None,
    *,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = True,
    absolute: bool = False,
    impl: str = 'auto',
) -> Float[Array, 'b h w n d']:
  r"""Computes decomposed Manhattan self-attention (Gated-SwinRMT, eq. 3).

      A = softmax(q k^T / sqrt(d) + slope (i - j) + |i - j| log(gamma) + mask)

  along each row of a window, then along each column. Without a window this is
  RMT's decomposed form (RMT, eq. 6). RMT's paper multiplies by the decay after
  the softmax. Its released code adds the logarithm before the softmax, as done
  here, so rows sum to one.

  Args:
    query: Queries, already rotated if they should be.
    key: Keys of the same shape.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for no
      decay.
    slopes: ALiBi slopes per head, for both passes; None, as in the paper, for
      no bias.
    extents: Valid rows and columns of each map, see `ops.padding`. The result
      is that of the map without padding.
    window: Nominal window in tokens; None for whole rows and columns.
    shift: Nominal shift of the windows, in tokens.
    scaled: Whether scores are divided by `sqrt(d)`.
    absolute: Whether slopes multiply `|i - j|` instead of `i - j`.
    impl: How windows are computed: 'banded' (always with extents), 'cyclic', or
      'auto', which leaves it to `ops.implementations`.

  Returns:
    The output `A_h A_w V`, in `value.dtype`; weights are computed in at least
    float32.

  Raises:
    ValueError: If a shape, the window, the shift or `impl` is wrong.
  """
  return axial.axial_attention(
      query,
      key,
      value,
      log_decay,
      slopes,
      extents,
      _weigh,
      window=window,
      shift=shift,
      scaled=scaled,
      absolute=absolute,
      impl=impl,
  )


@axial.attention_form('softmax', table=axial.FULL_FORMS)
@equation
def full_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    extents: padding.Extents = None,
    *,
    scaled: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Computes Manhattan self-attention (MaSA; RMT, eq. 5, as released).

      A = softmax(q k^T / sqrt(d) + (|row - ROW| + |col - COL|) log(gamma))

  over all pairs of tokens.

  Args:
    query: Queries, already rotated if they should be.
    key: Keys of the same shape.
    value: Values.
    log_decay: `log(gamma)` per head; None for no decay.
    extents: Valid rows and columns of each map, see `ops.padding`.
    scaled: Whether scores are divided by `sqrt(d)`.

  Returns:
    The output `A V`, in `value.dtype`; weights are computed in at least
    float32.

  Raises:
    ValueError: If a shape is wrong.
  """
  distance = positions.manhattan(*query.shape[1:3])
  return axial.all_pairs_attention(
      query, key, value, log_decay, extents, _weigh, distance, scaled=scaled
  )
