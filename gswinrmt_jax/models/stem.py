"""The stem (Gated-SwinRMT, Table 1), and patch embedding (DeiT, Swin)."""

from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models import layers
from gswinrmt_jax.ops import padding


class Stem(nn.Module):
  """Four 3x3 convolutions (Gated-SwinRMT, Table 1, with strides 2 1 2 1).

      C/2, BN, GELU; C/2, BN, GELU; C, BN, GELU; C, BN

  Attributes:
    features: Channels `C` of the first stage.
    dtype: Computation dtype.
    strides: Strides of the convolutions.
  """

  features: int
  dtype: Dtype
  strides: tuple[int, ...] = (2, 1, 2, 1)

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w 3'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b H W c']:
    """Embeds the image; each stride divides its size, rounded up."""
    half = self.features // 2
    widths = half, half, self.features, self.features
    for index, (features, stride) in enumerate(
        zip(widths, self.strides, strict=True)
    ):
      if index:
        x = ops.gelu(x)
      conv = layers.Conv(
          features, 3, self.dtype, stride=stride, name=f'conv{index}'
      )
      x = conv(x, extents)
      extents = padding.strided(extents, stride)
      x = layers.BatchNorm(name=f'norm{index}')(x, extents, train=train)
    return x


class PatchEmbedding(nn.Module):
  """Linear map of each patch: a convolution whose stride is its kernel size.

      y[i, j] = sum_{u, v} x[p i + u, p j + v] kernel[u, v] + bias,  then LN?

  It is initialised as a convolution, as in DeiT and Swin.

  Attributes:
    features: Channels of the first stage.
    patch_size: Side `p` of a patch.
    use_norm: Whether LN follows, as in Swin.
    dtype: Computation dtype.
  """

  features: int
  patch_size: int
  use_norm: bool
  dtype: Dtype

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w 3'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b H W c']:
    """Embeds the image, zero-padded on the right and at the bottom."""
    del train  # There is no BN.
    side = self.patch_size
    conv = layers.Conv(
        self.features, side, self.dtype, stride=side, name='conv'
    )
    x = conv(x, extents)
    return layers.LayerNorm(name='norm')(x) if self.use_norm else x
