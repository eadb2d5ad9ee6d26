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
from gswinrmt_jax.ops import padding, positions
from gswinrmt_jax.ops.attention import effective_window

GATES = {'sigmoid': jax.nn.sigmoid, 'swish': jax.nn.silu}


class Attention(nn.Module):
  r"""Projections, attention, LCE, gate and output projection.

      q, k, v1[, v2][, g] = x W_q, ...
      V = v1 or v1 * SiLU(v2)              eq. 8
      O = A_h A_w V + LCE(V)               A: eq. 3 or 7
      LCE(V) = PWConv1x1(DWConv5x5(V))     eq. 6; or DWConv5x5(V), RMT's eq. 7
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

    query = linear(name='query')(x)
    key = linear(name='key')(x)
    value = linear(name='value')(x)
    if arch.swiglu:  # SwiGLU, eq. 8.
      value *= jax.nn.silu(linear(name='value_gate')(x))
    # Eq. 3, 4, 7, 9.
    out = self.attend(query, key, value, self._log_decay(), extents)
    if arch.head_norm:  # RetNet's group norm, a group per head, not learned.
      out = ops.layer_norm(self._split_heads(out)).reshape(out.shape)
    if arch.lce != 'none':  # LCE, eq. 6.
      # LCE runs on the whole map. In windows, it would read neighbours that the
      # cyclic shift wrapped around.
      local = DepthwiseConv(5, self.dtype, name='local')(value, extents)
      if arch.lce == 'pointwise':
        # A 1x1 convolution: it has PyTorch's default start of convolutions,
        # whatever `linear_start` is.
        local = linear(start='uniform', name='local_point')(local)
      out += local
    if arch.gate:
      # G1, eq. 5, in float32: a sigmoid in bfloat16 has derivative 0 above 6.
      gate = GATES[arch.gate_fn](ops.wide(linear(name='gate')(x)))
      out = (out * gate).astype(out.dtype)
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

    To look inside a running model, intercept this method
    (`flax.linen.intercept_methods`); `weights` returns the weights from the
    same arguments.
    """
    query, key, value = map(self._split_heads, (query, key, value))
    query, key = self._rotate(query, extents), self._rotate(key, extents)
    attention, options = self._form(log_decay)
    out = attention(query, key, value, extents=extents, **options)
    return out.reshape(*out.shape[:3], -1)

  def weights(
      self,
      query: Float[Array, 'b h w c'],
      key: Float[Array, 'b h w c'],
      log_decay: Float[Array, 'passes n'] | None,
      extents: padding.Extents = None,
  ) -> dict[str, Array]:
    """Returns the weights `A` with which `attend` mixes values.

    Returns:
      'width' `[b y n x X]` and 'height' `[b x n y Y]`, of whole rows and
        columns, 0 between windows; or 'pairs' `[b n t T]` in a full stage.
    """
    query, key = map(self._split_heads, (query, key))
    query, key = self._rotate(query, extents), self._rotate(key, extents)
    _, options = self._form(log_decay)
    options['extents'] = extents
    if self.arch.is_full(self.stage):
      return {'pairs': ops.full_weights(query, key, **options)}
    width, height = ops.axial_weights(query, key, **options)
    return {'width': width, 'height': height}

  def _form(self, log_decay):
    """Returns the equation of attention, and its tables and options."""
    arch, stage = self.arch, self.stage
    if arch.is_full(stage):  # Over all pairs of tokens (RMT, eq. 5).
      weigh, distance = ops.FULL_FORMS[arch.score_fn]
      return ops.full_retention, {
          'log_decay': None if log_decay is None else log_decay[0],
          'scaled': arch.scaled,
          'weigh': weigh,
          'distance': distance,
      }
    window, slopes = arch.window(stage), None
    if arch.alibi != 'none':
      slopes = jnp.asarray(
          positions.balanced_slopes(arch.num_heads[stage]),
          ops.wide_dtype(self.dtype),
      )
    # Along rows, then columns of windows (eq. 3, 7 and 9).
    return ops.retention, {
        'log_decay': log_decay,
        'slopes': slopes,
        'window': window,
        'shift': window // 2 if window and self.shifted else 0,
        'scaled': arch.scaled,
        'absolute': arch.alibi == 'absolute',
        'weigh': ops.FORMS[arch.score_fn],
    }

  def _split_heads(self, x):
    return x.reshape(*x.shape[:3], self.arch.num_heads[self.stage], -1)

  def _rotate(self, x, extents):
    """Rotates pairs of channels by position (eq. 4; section 3.3 for SWAT)."""
    if self.arch.rotary == 'none':
      return x
    if self.arch.rotary == 'split_half':
      return ops.rotate_halves(x)
    # Eq. 4 counts positions within a window, row by row: `row M + column`.
    # Positions on the map differ from them by a constant in each window, and
    # scores depend only on differences of positions.
    window = self.arch.window(self.stage)
    stride, _ = effective_window(x.shape[2], window, 0)
    widths = None if extents is None else extents[:, 1]
    return ops.rotate_interleaved(x, widths, stride=stride)

  def _log_decay(self) -> Float[Array, 'passes n'] | None:
    """Returns `log gamma`: `log_sigmoid(theta)`, or RMT's fixed values."""
    arch = self.arch
    if arch.decay == 'none':
      return None
    heads = arch.num_heads[self.stage]
    spread = arch.decay_ranges[self.stage]
    passes = 1 if arch.is_full(self.stage) else 2  # two: width and height
    gamma = np.tile(positions.decay_rates(heads, spread), (passes, 1))
    if arch.decay == 'fixed':
      return jnp.asarray(np.log(gamma), ops.wide_dtype(self.dtype))
    logit = nn.initializers.constant(np.log(gamma / (1 - gamma)))
    theta = self.param('decay_logit', logit, gamma.shape, jnp.float32)
    return jax.nn.log_sigmoid(theta)
