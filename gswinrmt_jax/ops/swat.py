"""SWAT: sigmoid window attention, balanced ALiBi, decay after the sigmoid.

Gated-SwinRMT, eq. 7; its SwiGLU (eq. 8) is in `models.attention`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops import axial, padding, positions
from gswinrmt_jax.ops.equation import equation


def _weigh(scores, decay, mask, size):
  """Returns `sigmoid(scores) / size * gamma^distance`, or 0 where masked."""
  weights = jax.nn.sigmoid(scores) / size
  if decay is not None:
    weights *= jnp.exp(decay)
  return weights if mask is None else jnp.where(mask, weights, 0)


# Models rotate queries and keys themselves, as their `rotary` says.
@axial.attention_form('sigmoid', rotary=False)
@equation
def swat(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None,
    extents: padding.Extents = None,
    *,
    window: int | None,
    shift: int = 0,
    scaled: bool = False,
    absolute: bool = False,
    impl: str = 'auto',
    rotary: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Computes sigmoid window attention, axis by axis (Gated-SwinRMT, eq. 7).

      A = sigmoid(q k^T + slope (i - j) + mask) / w_s * gamma^|i - j|

  where `w_s` is the effective window of the axis, even where a region at the
  border of the map is smaller. Weights of masked pairs are exactly 0.

  Arguments, result and errors are those of `ops.retention`, with two
  differences. Scores are not divided by `sqrt(d)` by default. Queries and keys
  are rotated here by `ops.rotate_halves` (section 3.3), unless `rotary` is
  False.
  """
  if rotary:
    query, key = (positions.rotate_halves(x) for x in (query, key))
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
