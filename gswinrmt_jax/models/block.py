"""The block, and the feed-forward network inside it."""

from flax import linen as nn
from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.models import attention, layers
from gswinrmt_jax.models.architecture import Architecture


class FeedForward(nn.Module):
  """RMT's FFN, whose depthwise convolution is a residual branch.

      y = W2 (h + LN?(DWConv3x3(h))),    h = GELU(W1 x)

  or `y = W2 h`, without it.

  Attributes:
    features: Hidden channels.
    use_conv: Whether there is a convolution.
    use_norm: Whether the convolved branch is normalised (`ffn_sub_norm`).
    depthwise_impl: See `ops.depthwise_conv`.
    dtype: Computation dtype.
  """

  features: int
  use_conv: bool
  use_norm: bool
  depthwise_impl: str
  dtype: Dtype

  @nn.compact
  def __call__(self, x: Float[Array, 'b h w c']) -> Float[Array, 'b h w c']:
    """Returns the residual branch, before LayerScale and stochastic depth."""
    hidden = layers.Dense(self.features, dtype=self.dtype, name='up')(x)
    hidden = layers.gelu(hidden)
    if self.use_conv:
      local = layers.DepthwiseConv(
          3, self.dtype, self.depthwise_impl, name='position'
      )(hidden)
      if self.use_norm:
        local = layers.LayerNorm(dtype=self.dtype, name='norm')(local)
      hidden += local
    return layers.Dense(x.shape[-1], dtype=self.dtype, name='down')(hidden)


class Block(nn.Module):
  """Position convolution, attention and feed-forward, each a residual.

      x = x + DWConv3x3(x)
      x = x + DropPath(gamma_1 * Attention(LN(x)))
      x = x + DropPath(gamma_2 * FFN(LN(x)))

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
      keep: Float[Array, '2 b'] | None,
  ) -> Float[Array, 'b h w c']:
    """Applies the block.

    Args:
      x: The map.
      keep: What each sample's attention and feed-forward branch is multiplied
        by: 0 where stochastic depth drops it, else `1 / (1 - rate)`; None
        outside training.
    """
    arch = self.arch
    if arch.position_conv:
      x += layers.DepthwiseConv(
          3, self.dtype, arch.depthwise_impl, name='position'
      )(x)
    branch = layers.LayerNorm(dtype=self.dtype, name='attention_norm')(x)
    branch = attention.Attention(
        arch, self.stage, self.shifted, self.dtype, name='attention'
    )(branch)
    x += self._scaled(
        branch, 'attention_scale', None if keep is None else keep[0]
    )

    branch = layers.LayerNorm(dtype=self.dtype, name='ffn_norm')(x)
    branch = FeedForward(
        round(arch.mlp_ratios[self.stage] * x.shape[-1]),
        arch.ffn_conv,
        arch.ffn_norm,
        arch.depthwise_impl,
        self.dtype,
        name='ffn',
    )(branch)
    return x + self._scaled(
        branch, 'ffn_scale', None if keep is None else keep[1]
    )

  def _scaled(self, branch, name, keep):
    """Applies LayerScale, where the stage has it, and stochastic depth."""
    initial = self.arch.layer_scale[self.stage]
    if initial:
      init = nn.initializers.constant(initial)
      scale = self.param(name, init, branch.shape[-1:], jnp.float32)
      branch *= scale.astype(self.dtype)[None, None, None]
    if keep is not None:
      branch *= keep.astype(self.dtype)[:, None, None, None]
    return branch
