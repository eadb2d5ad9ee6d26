"""Stems, and the downsampling between stages.

`Stem` (Gated-SwinRMT, Table 1), `PatchEmbedding` (DeiT, Swin), `Downsample`.
"""

from flax import linen as nn
from flax.typing import Dtype
import jax.numpy as jnp
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
      conv = layers.Conv3x3(features, stride, self.dtype, name=f'conv{index}')
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
    x = padding.fill(x, extents)
    x = _PatchConv(self.features, self.patch_size, self.dtype, name='conv')(x)
    return layers.LayerNorm(name='norm')(x) if self.use_norm else x


class _PatchConv(nn.Module):
  """The convolution of an RGB image, as a matmul of its patches."""

  features: int
  side: int
  dtype: Dtype

  @nn.compact
  def __call__(self, x):
    init = layers.uniform_fan_in(3 * self.side**2)
    shape = (self.side, self.side, 3, self.features)
    kernel = self.param('kernel', init, shape)
    bias = self.param('bias', init, shape[-1:])
    patches = _cut(x.astype(self.dtype), self.side)
    patches = patches.reshape(*patches.shape[:3], -1)
    return ops.dense(patches, kernel.reshape(-1, self.features), bias)


class Downsample(nn.Module):
  """Halves height and width between stages, rounded up.

  'conv' is a 3x3 convolution of stride 2 and BN (RMT; Gated-SwinRMT, section
  3.5). 'merge' is Swin's patch merging, LN and a linear map of each 2x2
  neighbourhood; an odd size is zero-padded on the right or at the bottom:

      y[i, j] = LN([x[2i, 2j], x[2i+1, 2j], x[2i, 2j+1], x[2i+1, 2j+1]]) W

  Attributes:
    features: Channels of the next stage.
    kind: 'conv' or 'merge'.
    dtype: Computation dtype.
    start: Initialisation of the linear layer of 'merge', see `Dense`.
  """

  features: int
  kind: str
  dtype: Dtype
  start: str = 'normal'

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b H W f']:
    """Returns the input of the next stage; `train` is for BN."""
    if self.kind == 'conv':
      x = layers.Conv3x3(self.features, 2, self.dtype, name='conv')(x, extents)
      extents = padding.strided(extents, 2)
      return layers.BatchNorm(name='norm')(x, extents, train=train)
    # Swin's weights order the channels of the neighbours down, then right.
    x = _cut(padding.fill(x, extents), 2).swapaxes(3, 4)
    x = layers.LayerNorm(name='norm')(x.reshape(*x.shape[:3], -1))
    linear = layers.Dense(
        self.features,
        self.dtype,
        use_bias=False,
        start=self.start,
        name='linear',
    )
    return linear(x)


def _cut(
    x: Float[Array, 'b h w c'], side: int
) -> Float[Array, 'b H W {side} {side} c']:
  """Cuts a map, zero-padded, into patches `[b, H, W, row, column, c]`."""
  batch, height, width, channels = x.shape
  x = jnp.pad(x, ((0, 0), (0, -height % side), (0, -width % side), (0, 0)))
  rows, columns = x.shape[1] // side, x.shape[2] // side
  x = x.reshape(batch, rows, side, columns, side, channels)
  return x.swapaxes(2, 3)
