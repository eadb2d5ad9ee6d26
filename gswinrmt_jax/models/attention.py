"""The attention module: one equation, whose parts the three systems choose."""

import functools

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax import ops, pallas
from gswinrmt_jax.models import dense, layers, norm
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.parameter import parameter
from gswinrmt_jax.ops import decay as decay_lib
from gswinrmt_jax.ops import rotary as rotary_lib
from gswinrmt_jax.ops import window as window_lib
from gswinrmt_jax.ops.arrays import wide_dtype
from gswinrmt_jax.ops.launches import in_one_launch


class Attention(nn.Module):
  r"""Projection, both passes of attention, local enhancement, gate, output.

      q, k, v[, v2][, g] = x W           V = v or v1 * SiLU(v2)
      O = A_h A_w V + LCE(V)             A from `score_fn`; A V over all pairs
                                         in a full stage; normalised by head
      y = (O or O * gate_fn(g)) W_o

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
      self,
      x: Float[Array, 'b h w c'],
      before: norm.Affine = norm.NOTHING,
      after: norm.Affine = norm.NOTHING,
      onto: dense.Onto | None = None,
  ) -> Float[Array, 'b h w c']:
    """Mixes the tokens of the map.

    Args:
      x: The block's normalised input; the gate reads it too.
      before: Scale and bias of that normalisation, if they are still to be
        applied.
      after: LayerScale of the branch, if there is one.
      onto: What the branch is added to; None for the branch itself.
    """
    arch = self.arch
    channels = x.shape[-1]
    names = ['query', 'key', 'value']
    names += ['value_gate'] * arch.swiglu + ['gate'] * arch.gate
    project = dense.FusedDense(
        channels, tuple(names), self.dtype, name='projection'
    )
    nn.share_scope(self, project)

    maps = dict(zip(names, project(x, before, self._reordered), strict=True))
    value = maps['value']
    if arch.swiglu:
      value *= jax.nn.silu(maps['value_gate'])
    out = self.attend(maps['query'], maps['key'], value, self._log_decay())
    if arch.head_norm:
      heads = out.reshape(*out.shape[:-1], arch.num_heads[self.stage], -1)
      out = ops.normalize_heads(heads).reshape(out.shape)
    gate = None
    if arch.gate:
      swish = arch.gate_fn == 'swish'
      gate = (jax.nn.silu if swish else ops.sigmoid_gate)(maps['gate'])
      # Kept only for a caller who asks for 'intermediates'.
      self.sow('intermediates', 'gate_values', gate)
    # On the whole map: inside windows it would see neighbours that the cyclic
    # shift wrapped around.
    if arch.lce != 'none':
      local, bias = layers.DepthwiseConv(
          5, self.dtype, arch.depthwise_impl, name='local'
      )(value)
      if arch.lce == 'pointwise':
        core = dense.Onto(out)
        if arch.gate and not swish:  # which is positive
          core, gate = dense.Onto(out, gate=gate), None
        mix = dense.AffineDense(channels, self.dtype, name='local_point')
        out = mix(local, before=norm.Affine(None, bias), onto=core)
      else:
        out += ops.add_bias(local, bias)
    if gate is not None:
      out *= gate
    project_out = dense.AffineDense(channels, self.dtype, name='out')
    return project_out(out, after=after, onto=onto)

  def attend(
      self,
      query: Float[Array, 'b h w c'],
      key: Float[Array, 'b h w c'],
      value: Float[Array, 'b h w c'],
      log_decay: Float[Array, 'passes n'] | None,
  ) -> Float[Array, 'b h w c']:
    """Splits heads, rotates, applies the attention form, joins heads.

    Linear in the values, and a method without parameters of its own, so that
    `gswinrmt_jax.maps` can differentiate it inside a model at work.
    """
    arch = self.arch
    *_, width, channels = value.shape
    heads = arch.num_heads[self.stage]
    window = arch.window_size or None
    shift = arch.window_size // 2 if self.shifted else 0
    full = self._is_full()

    query, key, value = (
        m.reshape(*m.shape[:-1], heads, channels // heads)
        for m in (query, key, value)
    )
    rotation = None
    if arch.rotary == 'interleaved':
      stride, _ = window_lib.effective(width, None if full else window, 0)
      rotation = rotary_lib.interleaved(query.shape[-1], stride)
    elif arch.rotary == 'split_half':
      rotation = rotary_lib.split_half(query.shape[-1])
    slopes = None
    if arch.alibi != 'none':
      slopes = jnp.asarray(
          decay_lib.balanced_slopes(heads), wide_dtype(self.dtype)
      )
    if full:
      if log_decay is not None:
        log_decay = log_decay[0]
      if rotation is not None:
        query, key = (
            rotary_lib.rotate(x, rotation=rotation) for x in (query, key)
        )
      out = ops.FULL_FORMS[arch.score_fn](
          query, key, value, log_decay, scaled=arch.scaled
      )
    else:
      kernels = arch.attention_impl == 'pallas'
      impl = 'auto' if kernels else arch.attention_impl
      form = functools.partial(ops.FORMS[arch.score_fn], impl=impl)
      if kernels and pallas.runs_here():
        form = pallas.FORMS[arch.score_fn]
      out = form(
          query,
          key,
          value,
          log_decay,
          slopes=slopes,
          window=window,
          shift=shift,
          scaled=arch.scaled,
          absolute=arch.alibi == 'absolute',
          rotation=rotation,
      )
    return out.reshape(*out.shape[:-2], channels)

  def _reordered(self, name: str, array: Array) -> Array:
    """Kernels and biases with the channels that the rotation wants."""
    if self.arch.rotary != 'interleaved' or name not in ('query', 'key'):
      return array
    return rotary_lib.arranged(array, self.arch.num_heads[self.stage])

  def _is_full(self) -> bool:
    return self.stage + 1 in self.arch.full_stages

  def _log_decay(self) -> Float[Array, 'passes n'] | None:
    """`log gamma`: `log_sigmoid(theta)` with theta learned, or RMT's values."""
    arch = self.arch
    if arch.decay == 'none':
      return None
    heads = arch.num_heads[self.stage]
    passes = 1 if self._is_full() else 2
    spread = arch.decay_ranges[self.stage]
    if arch.decay == 'fixed':
      log_rates = np.log(decay_lib.decay_rates(heads, spread))
      return jnp.asarray(
          np.tile(log_rates, (passes, 1)), wide_dtype(self.dtype)
      )
    logits = np.tile(decay_lib.decay_logits(heads, spread), (passes, 1))
    init = nn.initializers.constant(logits)
    theta = parameter(self, 'decay_logit', init, logits.shape)
    return jax.nn.log_sigmoid(in_one_launch(theta, 'forward'))
