"""SWAT: sigmoid window attention with balanced ALiBi and a decay after it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import axial, positions
from gswinrmt_jax.ops.equation import equation


@axial.attention_form('sigmoid', rotary=False)  # Models rotate first.
@equation
def swat(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None,
    *,
    window: int | None,
    shift: int = 0,
    scaled: bool = False,
    absolute: bool = False,
    rotary: bool = True,
    impl: str = 'auto',
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
    absolute: Whether ALiBi takes `|i - j|` instead of `i - j`.
    rotary: Whether queries and keys are rotated by their position along each
      pass (section 3.3).
    impl: 'auto', 'banded' or 'cyclic', see `axial.axial_attention`.

  Returns:
    The mixed values, in `value.dtype`; weights in float32 at least.

  Raises:
    ValueError: If a shape, the window, the shift or `impl` is wrong.
  """
  axial.check_heads('log_decay', log_decay, (2, query.shape[3]))
  if rotary:
    query, key = (positions.rotate_halves(x) for x in (query, key))
  scale = query.shape[-1] ** -0.5 if scaled else 1.0

  def weigh(scores, axis, size, mask):
    scores = axial.add_alibi(scores * scale, slopes, absolute)
    weights = jax.nn.sigmoid(scores) / size
    if log_decay is not None:
      distance = np.abs(axial.offsets(scores.shape[-1]))
      weights *= jnp.exp(
          axial.times_distance(log_decay[axis], distance, scores)
      )
    return weights if mask is None else jnp.where(mask, weights, 0)

  return axial.axial_attention(
      query, key, value, weigh, window=window, shift=shift, impl=impl
  )
