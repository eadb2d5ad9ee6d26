"""Retention without softmax: scores times decay, as RetNet has it.

RMT, section 3.1 and eq. 2 to 4. What RetNet puts after it, and RMT's
ablations instead of the softmax, are a norm of each head, `normalize_heads`,
and a swish gate.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import axial, padding
from gswinrmt_jax.ops.equation import equation
from gswinrmt_jax.ops.layers import layer_norm


def _weigh(scores, decay, mask, size):
  """`q k^T * gamma^distance`, or 0."""
  del size  # Not normalised: see `normalize_heads`.
  weights = scores if decay is None else scores * jnp.exp(decay)
  return weights if mask is None else jnp.where(mask, weights, 0)


@axial.attention_form('linear')
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
) -> Float[Array, 'b h w n d']:
  r"""Bidirectional retention along rows, then columns (RMT, eq. 3, per axis).

      A = (q k^T / sqrt(d) + slope (i - j)) * gamma^|i - j|

  in each pass; masked pairs are exactly 0. The decays of the two passes
  multiply to the Manhattan decay (eq. 4), the scores to a product of two
  (eq. 6). Arguments, result and errors are those of `ops.retention`.
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
  )


@axial.attention_form('linear', table=axial.FULL_FORMS)
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
  r"""Retention with the Manhattan decay over all tokens (RMT, eq. 3 and 4).

      A = q k^T / sqrt(d) * gamma^(|row - ROW| + |col - COL|)

  Arguments, result and errors are those of `ops.full_retention`.
  """
  distance = axial.manhattan(*query.shape[1:3])
  return axial.all_pairs_attention(
      query, key, value, log_decay, extents, _weigh, distance, scaled=scaled
  )


@axial.attention_form('causal', table=axial.FULL_FORMS)
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
  r"""RetNet's own retention over the tokens in reading order (RMT, eq. 2).

      A[t, T] = q k^T / sqrt(d) * gamma^(t - T)  if t >= T,  else  0

  in its parallel form, with `t = row W + column`. Arguments, result and errors
  are those of `ops.full_retention`; `query` and `key` are rotated by `t`.
  """
  _, height, width, _, _ = query.shape
  earlier = distance = axial.offsets(height * width)
  if extents is not None:  # `t` counts valid tokens only.
    row, column = np.divmod(np.arange(height * width), width)
    place = row[None] * extents[:, 1:] + column[None]
    distance = place[:, :, None] - place[:, None, :]
  return axial.all_pairs_attention(
      query,
      key,
      value,
      log_decay,
      extents,
      _weigh,
      # The power of a later token would overflow before the mask.
      (np if extents is None else jnp).maximum(distance, 0),
      scaled=scaled,
      mask=earlier >= 0,
  )


def normalize_heads(x: Float[Array, 'b h w n d']) -> Float[Array, 'b h w n d']:
  r"""RetNet's group norm: one group per head and token, nothing learned.

      y = (x - mean_d x) / sqrt(var_d x + 1e-6)

  Over all pairs a factor on all weights of a query changes nothing after it,
  up to the epsilon, so RetNet's normalisations of the scores are left out.

  Returns:
    The normalised `x`, computed in float32 at least, in `x.dtype`.
  """
  return layer_norm(x)
