"""SWAT: sigmoid window attention with balanced ALiBi and a decay after it."""

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import axial, rotary, score_fn
from gswinrmt_jax.ops.traced import traced_once


@traced_once(*axial.STATIC)
def swat(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '2 n'] | None,
    slopes: Float[Array, ' n'] | None,
    *,
    window: int | None,
    shift: int = 0,
    scaled: bool = False,
    impl: str = 'banded',
    absolute: bool = False,
    rotation: rotary.Rotation | None = None,
) -> Float[Array, 'b h w n d']:
  r"""Sigmoid attention along rows, then columns (Gated-SwinRMT, eq. 7).

      A = sigmoid(q k^T + slope (i - j) + mask) / w_s * gamma^|i - j|

  with `w_s` the effective window of the axis, also where a region at the
  border of the map is smaller. Masked pairs are exactly 0.

  Args:
    query: Queries.
    key: Keys.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for none.
    slopes: ALiBi slopes per head, shared by both passes; None for none.
    window: Nominal window; None for the whole row or column.
    shift: Nominal shift of the windows.
    scaled: Whether scores are divided by `sqrt(d)`; eq. 7 does not.
    impl: 'banded' or 'cyclic', see `axial.axial_attention`.
    absolute: Whether ALiBi takes `|i - j|` instead of `i - j`.
    rotation: What turns queries and keys; None for nothing.

  Returns:
    The mixed values, in `value.dtype`; weights in float32 at least.
  """
  scale = query.shape[-1] ** -0.5 if scaled else 1.0

  def weigh(scores, axis, size, mask):
    scores = axial.biased(scores * scale, slopes, absolute)
    weights = score_fn.sigmoid(scores, value.dtype) / size
    if log_decay is not None:
      distance = np.abs(axial.offsets(scores.shape[-1]))
      weights *= axial.decay_table(log_decay[axis], distance, scores)
    return weights if mask is None else jnp.where(mask, weights, 0)

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
