"""Retention without softmax: scores times decay, as in RetNet.

See RMT, section 3.1 and eq. 2 to 4. In RetNet, and in RMT's ablations that
replace the softmax, a norm of each head (`head_norm`) and a swish gate follow.
Over all pairs, that norm removes any common factor of a query's weights, up to
its epsilon. RetNet's normalisations of the scores are therefore omitted.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import padding, positions
from gswinrmt_jax.ops.attention_forms import (
    all_pairs_attention,
    axial_attention,
)
from gswinrmt_jax.ops.registry import equation


def _weigh(scores, decay, mask, size):
  """Returns `q k^T * gamma^distance`, or 0 where masked."""
  del size  # Not normalised: the norm of each head follows.
  weights = scores if decay is None else scores * jnp.exp(decay)
  return weights if mask is None else jnp.where(mask, weights, 0)


@equation
def linear_retention(
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
  r"""Computes bidirectional retention along rows, then columns (RMT, eq. 3).

      A = (q k^T / sqrt(d) + slope (i - j)) * gamma^|i - j|

  in each pass. Weights of masked pairs are exactly 0. As in RMT, eq. 6, the
  weights of both passes multiply; their decays give the Manhattan decay
  (eq. 4). Arguments, result and errors are those of `ops.retention`.
  """
  return axial_attention(
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


@equation
def full_linear_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    extents: padding.Extents = None,
    *,
    scaled: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Computes retention over all pairs of tokens (RMT, eq. 3 and 4).

      A = q k^T / sqrt(d) * gamma^(|row - ROW| + |col - COL|)

  Arguments, result and errors are those of `ops.full_retention`.
  """
  distance = positions.manhattan(*query.shape[1:3])
  return all_pairs_attention(
      query, key, value, log_decay, extents, _weigh, distance, scaled=scaled
  )


@equation
def causal_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    extents: padding.Extents = None,
    *,
    scaled: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Computes RetNet's causal retention, in reading order (RMT, eq. 2).

      A[t, T] = q k^T / sqrt(d) * gamma^(t - T)  if t >= T,  else  0

  in its parallel form, with `t = row W + column`. Arguments, result and errors
  are those of `ops.full_retention`; `query` and `key` are rotated by `t`.
  """
  _, height, width, _, _ = query.shape
  earlier = distance = positions.offsets(height * width)
  if extents is not None:  # `t` counts valid tokens only.
    row, column = np.divmod(np.arange(height * width), width)
    place = row[None] * extents[:, 1:] + column[None]
    distance = place[:, :, None] - place[:, None, :]
  return all_pairs_attention(
      query,
      key,
      value,
      log_decay,
      extents,
      _weigh,
      # Without it, the decay of later tokens would overflow before the mask.
      distance.clip(0),
      scaled=scaled,
      mask=earlier >= 0,
  )
