"""The block: position convolution (CPE), attention, feed-forward (FFN)."""

import functools

from flax import linen as nn
from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.attention import Attention
from gswinrmt_jax.models.layers import Dense, DepthwiseConv, LayerNorm
from gswinrmt_jax.ops import padding


class FeedForward(nn.Module):
  """RMT's FFN, whose depthwise convolution is a residual branch.

      y = W2 (h + LN(DWConv3x3(h))),    h = GELU(W1 x)

  This is the FFN of RMT's released code. Gated-SwinRMT (section 3.5) lists the
  same layers without the residual. LN is omitted unless `ffn_norm`. Without
  `ffn_conv`, `y = W2 h`.

  Attributes:
    arch: The components; h has `mlp_ratios` times the channels of x.
    stage: Index of the stage, from 0.
    dtype: Computation dtype.
  """

  arch: Architecture
  stage: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], extents: padding.Extents = None
  ) -> Float[Array, 'b h w c']:
    """Applies the network to the block's normalised input."""
    arch, channels = self.arch, x.shape[-1]
    linear = functools.partial(Dense, dtype=self.dtype, start=arch.linear_start)
    features = round(arch.mlp_ratios[self.stage] * channels)
    hidden = ops.gelu(linear(features, name='up')(x))
    if arch.ffn_conv:
      # Weights files call this convolution 'position', as they call CPE.
      local = DepthwiseConv(3, self.dtype, name='position')(hidden, extents)
      if arch.ffn_norm:
        local = LayerNorm(name='norm')(local)
      hidden += local
    return linear(channels, name='down')(hidden)


class Block(nn.Module):
  """CPE, attention and FFN, each a residual branch.

      x = x + DWConv3x3(x)
      x = x + DropPath(scale_1 * Attention(LN(x)))
      x = x + DropPath(scale_2 * FFN(LN(x)))

  LayerScale, `scale_1` and `scale_2`, is one factor per channel.

  Attributes:
    arch: The components.
    stage: Index of the stage, from 0.
    shifted: Whether this block shifts its windows.
    dtype: Computation dtype.
    drop_rate: Stochastic depth: probability that a sample's branch is dropped.
      Unless it is 0, the RNG stream 'dropout' is needed. Kept branches are
      scaled by `1 / (1 - rate)`, which preserves the mean.
  """

  arch: Architecture
  stage: int
  shifted: bool
  dtype: Dtype
  drop_rate: float = 0.0

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], extents: padding.Extents = None
  ) -> Float[Array, 'b h w c']:
    """Applies the block."""
    arch = self.arch
    if arch.position_conv:
      x += DepthwiseConv(3, self.dtype, name='position')(x, extents)
    attention = Attention(
        arch, self.stage, self.shifted, self.dtype, name='attention'
    )
    x += self._branch('attention', attention, x, extents)
    feed_forward = FeedForward(arch, self.stage, self.dtype, name='ffn')
    return x + self._branch('ffn', feed_forward, x, extents)

  def _branch(self, name, layer, x, extents):
    """Returns `DropPath(scale * layer(LN(x)))`; no scale if it starts at 0."""
    x = layer(LayerNorm(name=f'{name}_norm')(x), extents)
    initial = self.arch.layer_scale[self.stage]
    if initial:
      init = nn.initializers.constant(initial)
      scale = self.param(f'{name}_scale', init, x.shape[-1:], jnp.float32)
      # float32, and so is the sum with it, as in PyTorch's autocast: bfloat16
      # rounds much of a branch away if its scale is 0.01, and all at 1e-6.
      x = ops.scale_channels(x, scale)
    # Stochastic depth: drops whole samples. In evaluation, `Stage` sets the
    # rate to 0, with which `x` is returned unchanged and no key is needed.
    drop_path = nn.Dropout(self.drop_rate, broadcast_dims=(1, 2, 3))
    return drop_path(x, deterministic=False)
