"""The block, and the feed-forward network inside it."""

from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from gswinrmt_jax import ops, pallas
from gswinrmt_jax.models import attention, dense, layers, norm
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.parameter import parameter
from gswinrmt_jax.ops.arrays import written


class FeedForward(nn.Module):
  """RMT's FFN, whose depthwise convolution is a residual branch.

      y = W2 (h + LN?(DWConv3x3(h))),    h = GELU(W1 x)

  or `y = W2 h`, without it.

  Attributes:
    features: Hidden channels.
    use_conv: Whether there is a convolution.
    use_norm: Whether the convolved branch is normalised (`ffn_sub_norm`).
    impl: 'pallas' for GELU, convolution, norm and residual by kernels of our
      own, on one GPU and where there is a norm; else 'xla'.
    depthwise_impl: See `ops.depthwise_conv`.
    dtype: Computation dtype.
  """

  features: int
  use_conv: bool
  use_norm: bool
  impl: str
  depthwise_impl: str
  dtype: Dtype

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      before: norm.Affine = norm.NOTHING,
      after: norm.Affine = norm.NOTHING,
      onto: dense.Onto | None = None,
  ) -> Float[Array, 'b h w c']:
    """Applies the network.

    Args:
      x: The block's normalised input.
      before: Scale and bias of that normalisation, if they are still to be
        applied.
      after: LayerScale of the branch, if there is one.
      onto: What the branch is added to; None for the branch itself.
    """
    kernels = self.impl == 'pallas' and self.use_norm and pallas.runs_here()
    up = dense.AffineDense(
        self.features, self.dtype, gelu=not kernels, name='up'
    )
    hidden = up(x, before=before)
    if kernels:
      hidden = pallas.gelu_conv_norm(
          hidden,
          *layers.DepthwiseParameters(3, name='position')(self.features),
          *norm.AffineParameters(name='norm')(self.features),
      )
    elif self.use_conv:
      convolve = layers.DepthwiseConv(
          3, self.dtype, self.depthwise_impl, name='position'
      )
      local = ops.add_bias(*convolve(hidden))
      if self.use_norm:
        local = norm.LayerNorm(name='norm')(local)
      hidden += local
    down = dense.AffineDense(x.shape[-1], self.dtype, name='down')
    return down(hidden, after=after, onto=onto)


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
      convolve = layers.DepthwiseConv(
          3, self.dtype, arch.depthwise_impl, name='position'
      )
      x += ops.add_bias(*convolve(x))
    x = written(x)
    keeps = (None, None) if keep is None else keep
    normalized, affine = norm.Normalization(name='attention_norm')(x)
    attend = attention.Attention(
        arch, self.stage, self.shifted, self.dtype, name='attention'
    )
    scale = self._scale('attention_scale', x)
    x = attend(normalized, affine, scale, dense.Onto(x, keeps[0]))
    x = written(x)

    normalized, affine = norm.Normalization(name='ffn_norm')(x)
    feed_forward = FeedForward(
        round(arch.mlp_ratios[self.stage] * x.shape[-1]),
        arch.ffn_conv,
        arch.ffn_norm,
        arch.ffn_impl,
        arch.depthwise_impl,
        self.dtype,
        name='ffn',
    )
    scale = self._scale('ffn_scale', x)
    x = feed_forward(normalized, affine, scale, dense.Onto(x, keeps[1]))
    return written(x)

  def _scale(self, name, x):
    """LayerScale, where the stage has it."""
    initial = self.arch.layer_scale[self.stage]
    if not initial:
      return norm.NOTHING
    init = nn.initializers.constant(initial)
    scale = parameter(self, name, init, x.shape[-1:])
    return norm.Affine(scale, None)
