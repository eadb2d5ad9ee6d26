"""The attention module of RMT and both Gated-SwinRMT variants.

In the order of the code, with the equations of the Gated-SwinRMT paper: SwiGLU
of the values (8), rotation (4), the attention form (3, 7) in adaptive windows
(9), local context enhancement LCE (6), gate G1 (5). The attention forms are in
`ops`.
"""

import functools

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.layers import Dense, DepthwiseConv
from gswinrmt_jax.ops import padding, positions, windows

_GATES = {'sigmoid': jax.nn.sigmoid, 'swish': jax.nn.silu}


class Attention(nn.Module):
  r"""Projections, attention, LCE, gate and output projection.

      q, k, v1[, v2][, g] = x W_q, ...
      V = v1 or v1 * SiLU(v2)              eq. 8
      O = A_h A_w V + LCE(V)               A: eq. 3 or 7
      LCE(V) = PWConv1x1(DWConv5x5(V))     eq. 6; or DWConv5x5(V)
      y = O W_o or (O * gate_fn(g)) W_o    eq. 5

  `score_fn` defines the weights `A`. In a full stage, a single `A` over all
  pairs of tokens replaces `A_h A_w`. With `head_norm`, each head of `A_h A_w V`
  is normalised.

  Attributes:
    arch: The components.
    stage: Index of the stage, from 0.
    shifted: Whether this block shifts its windows.
    dtype: Computation dtype.
  """

  arch: Architecture
  stage: int
  shifted: bool
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], extents: padding.Extents = None
  ) -> Float[Array, 'b h w c']:
    """Mixes the tokens of the block's normalised input."""
    arch = self.arch
    channels = x.shape[-1]
    linear = functools.partial(
        Dense, channels, self.dtype, start=arch.linear_start
    )

    query, key, value = (
        linear(name=name)(x) for name in ('query', 'key', 'value')
    )
    if arch.swiglu:  # SwiGLU, eq. 8.
      value *= jax.nn.silu(linear(name='value_gate')(x))
    # Eq. 3, 4, 7, 9.
    out = self.attend(query, key, value, self._log_decay(), extents)
    if arch.head_norm:  # RetNet's group norm, a group per head, not learned.
      heads = out.reshape(*out.shape[:-1], arch.num_heads[self.stage], -1)
      out = ops.layer_norm(heads).reshape(out.shape)
    if arch.lce != 'none':  # LCE, eq. 6.
      # LCE runs on the whole map. In windows, it would read neighbours that the
      # cyclic shift wrapped around.
      local = DepthwiseConv(5, self.dtype, name='local')(value, extents)
      if arch.lce == 'pointwise':
        # A 1x1 convolution: it has PyTorch's default start of convolutions,
        # whatever `linear_start` is.
        local = linear(start='uniform', name='local_point')(local)
      out += local
    if arch.gate:  # G1, eq. 5.
      gate = _GATES[arch.gate_fn](linear(name='gate')(x))
      # Stored only if the caller asks for 'intermediates'.
      self.sow('intermediates', 'gate_values', gate)
      out *= gate
    return linear(name='out')(out)

  def attend(
      self,
      query: Float[Array, 'b h w c'],
      key: Float[Array, 'b h w c'],
      value: Float[Array, 'b h w c'],
      log_decay: Float[Array, 'passes n'] | None,
      extents: padding.Extents = None,
  ) -> Float[Array, 'b h w c']:
    """Splits heads, rotates, applies the attention form, joins heads.

    The method is linear in the values and has no parameters, so that
    `interpret.maps` can differentiate it inside a running model.
    """
    channels = value.shape[-1]
    heads = self.arch.num_heads[self.stage]
    query, key, value = (
        m.reshape(*m.shape[:-1], heads, channels // heads)
        for m in (query, key, value)
    )
    query, key = (self._rotate(m, extents) for m in (query, key))
    attend = self._over_all_pairs if self._is_full() else self._along_axes
    out = attend(query, key, value, log_decay, extents)
    return out.reshape(*out.shape[:-2], channels)

  def _rotate(self, x, extents):
    """Rotates pairs of channels by position: eq. 4, or section 3.3 for SWAT."""
    if self.arch.rotary == 'none':
      return x
    if self.arch.rotary == 'split_half':
      return ops.rotate_halves(x)
    # Eq. 4 counts positions within a window, row by row: `row M + column`.
    # Positions on the map differ from them by a constant in each window, and
    # scores depend only on differences of positions.
    stride, _ = windows.effective_window(x.shape[2], self._window(), 0)
    widths = None if extents is None else extents[:, 1]
    return ops.rotate_interleaved(x, widths, stride=stride)

  def _along_axes(self, query, key, value, log_decay, extents):
    """Attends along rows, then columns of windows (eq. 3, 7 and 9)."""
    arch = self.arch
    slopes = None
    if arch.alibi != 'none':
      slopes = jnp.asarray(
          positions.balanced_slopes(arch.num_heads[self.stage]),
          ops.wide_dtype(self.dtype),
      )
    return ops.FORMS[arch.score_fn](
        query,
        key,
        value,
        log_decay,
        slopes,
        extents,
        window=self._window(),
        shift=arch.window_size // 2 if self.shifted else 0,
        scaled=arch.scaled,
        absolute=arch.alibi == 'absolute',
    )

  def _over_all_pairs(self, query, key, value, log_decay, extents):
    """Attends over all pairs of tokens (RMT, eq. 5)."""
    if log_decay is not None:
      log_decay = log_decay[0]  # of the only pass
    return ops.FULL_FORMS[self.arch.score_fn](
        query, key, value, log_decay, extents, scaled=self.arch.scaled
    )

  def _is_full(self) -> bool:
    return self.stage + 1 in self.arch.full_stages  # counted from 1

  def _window(self) -> int | None:
    """Returns the nominal window; None where attention spans the map."""
    if self._is_full() or self.arch.window_size == 0:
      return None
    return self.arch.window_size

  def _log_decay(self) -> Float[Array, 'passes n'] | None:
    """Returns `log gamma`: `log_sigmoid(theta)`, or RMT's fixed values."""
    arch = self.arch
    if arch.decay == 'none':
      return None
    heads = arch.num_heads[self.stage]
    spread = arch.decay_ranges[self.stage]
    passes = 1 if self._is_full() else 2  # two: width and height
    shape = (passes, heads)
    if arch.decay == 'fixed':
      log_rates = np.log(positions.decay_rates(heads, spread))
      return jnp.asarray(
          np.broadcast_to(log_rates, shape), ops.wide_dtype(self.dtype)
      )
    theta_0 = np.broadcast_to(positions.decay_logits(heads, spread), shape)
    theta = self.param('decay_logit', nn.initializers.constant(theta_0), shape)
    return jax.nn.log_sigmoid(theta)
