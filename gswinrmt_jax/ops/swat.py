"""SWAT: sigmoid window attention, balanced ALiBi, a decay after the sigmoid.

Gated-SwinRMT, eq. 7; its SwiGLU (eq. 8) is in `models.attention`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops import axial, padding
from gswinrmt_jax.ops.equation import equation


def _weigh(scores, decay, mask, size):
  """`sigmoid(q k^T + slope (i - j)) / size * gamma^distance`, or 0."""
  weights = jax.nn.sigmoid(scores) / size
  if decay is not None:
    weights *= jnp.exp(decay)
  return weights if mask is None else jnp.where(mask, weights, 0)


@axial.attention_form('sigmoid')
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
) -> Float[Array, 'b h w n d']:
  r"""Sigmoid attention along rows, then columns (Gated-SwinRMT, eq. 7).

      A = sigmoid(q k^T + slope (i - j) + mask) / w_s * gamma^|i - j|

  with `w_s` the effective window of the axis, also where a region at the
  border of the map is smaller. Masked pairs are exactly 0. `q` and `k` come
  rotated by their position along the pass (section 3.3), by
  `ops.rotate_halves`.

  Arguments, result and errors are those of `ops.retention`, except that eq. 7
  does not divide by `sqrt(d)` unless `scaled`.
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
