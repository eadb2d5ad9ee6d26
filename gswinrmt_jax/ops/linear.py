"""Retention without softmax: scores times decay, as RetNet has it.

RMT, section 3.1 and eq. 2 to 4. What RetNet puts after it, and RMT's
ablations instead of the softmax, are a norm of each head, `normalize_heads`,
and a swish gate.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import axial
from gswinrmt_jax.ops.equation import equation
from gswinrmt_jax.ops.layers import layer_norm


@axial.attention_form('linear')
@equation
def linear_retention(
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
  r"""Bidirectional retention along rows, then columns (RMT, eq. 3, per axis).

      A = q k^T / sqrt(d) * gamma^|i - j|

  in each pass; masked pairs are exactly 0. The decays of the two passes
  multiply to the Manhattan decay (eq. 4), the scores to a product of two
  (eq. 6).

  Args:
    query: Queries, rotated already if they are to be.
    key: Keys, likewise.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for none.
    slopes: ALiBi slopes per head, times the signed distance `i - j`, added to
      the scores.
    window: Nominal window; None for the whole row or column.
    shift: Nominal shift of the windows.
    scaled: Whether scores are divided by `sqrt(d)`.
    absolute: Whether ALiBi takes `|i - j|` instead.
    impl: 'auto', 'banded' or 'cyclic', see `axial.axial_attention`.

  Returns:
    The mixed values, in `value.dtype`; weights in float32 at least.

  Raises:
    ValueError: If a shape, the window, the shift or `impl` is wrong.
  """
  axial.check_heads('log_decay', log_decay, (2, query.shape[3]))
  scale = query.shape[-1] ** -0.5 if scaled else 1.0

  def weigh(scores, axis, size, mask):
    del size  # Not normalised: see `normalize_heads`.
    weights = axial.add_alibi(scores * scale, slopes, absolute)
    if log_decay is not None:
      distance = np.abs(axial.offsets(scores.shape[-1]))
      weights *= jnp.exp(
          axial.times_distance(log_decay[axis], distance, scores)
      )
    return weights if mask is None else jnp.where(mask, weights, 0)

  return axial.axial_attention(
      query, key, value, weigh, window=window, shift=shift, impl=impl
  )


@axial.attention_form('linear', table=axial.FULL_FORMS)
@equation
def full_linear_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    *,
    scaled: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Retention with the Manhattan decay over all tokens (RMT, eq. 3 and 4).

      A = q k^T / sqrt(d) * gamma^(|row - ROW| + |col - COL|)

  Args:
    query: Queries, rotated already if they are to be.
    key: Keys, likewise.
    value: Values.
    log_decay: `log(gamma)` per head; None for none.
    scaled: Whether scores are divided by `sqrt(d)`.

  Returns:
    The mixed values, in `value.dtype`; weights in float32 at least.
  """
  distance = axial.manhattan(*query.shape[1:3])
  return _decayed(query, key, value, log_decay, scaled, distance)


@axial.attention_form('causal', table=axial.FULL_FORMS)
@equation
def causal_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    *,
    scaled: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""RetNet's own retention over the tokens in reading order (RMT, eq. 2).

      A[t, T] = q k^T / sqrt(d) * gamma^(t - T)  if t >= T,  else  0

  in its parallel form, with `t = row W + column`.

  Args:
    query: Queries, rotated already by `t` if they are to be.
    key: Keys, likewise.
    value: Values.
    log_decay: `log(gamma)` per head; None for the mask alone.
    scaled: Whether scores are divided by `sqrt(d)`.

  Returns:
    The mixed values, in `value.dtype`; weights in float32 at least.
  """
  _, height, width, _, _ = query.shape
  distance = axial.offsets(height * width)
  return _decayed(
      query,
      key,
      value,
      log_decay,
      scaled,
      # The power of a later token would overflow before the mask.
      np.maximum(distance, 0),
      mask=distance >= 0,
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


def _decayed(query, key, value, log_decay, scaled, distance, mask=None):
  """Scores times the power of `distance[t, T]`, 0 outside of `mask[t, T]`."""
  axial.check_heads('log_decay', log_decay, (query.shape[3],))

  def weigh(scores):
    weights = scores * query.shape[-1] ** -0.5 if scaled else scores
    if log_decay is not None:
      weights = weights * jnp.exp(
          axial.times_distance(log_decay, distance, scores)
      )
    return weights if mask is None else jnp.where(mask[None, None], weights, 0)

  return axial.all_pairs_attention(query, key, value, weigh)
