"""Patches that do not overlap: DeiT's and Swin's embedding, Swin's merging."""

from flax import linen as nn
from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models import dense, layers, norm
from gswinrmt_jax.models.parameter import parameter


class PatchEmbedding(nn.Module):
  """A linear map of each patch: a convolution whose stride is its side.

      y[i, j] = sum_{u, v} x[p i + u, p j + v] kernel[u, v] + bias,  then LN?

  Initialised as the convolution that DeiT and Swin make it.

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
      self, x: Float[Array, 'b h w 3'], *, train: bool
  ) -> Float[Array, 'b H W c']:
    """Embeds the image at `1 / p` of its extents, rounded up.

    Args:
      x: The image; zeros fill up the patches at its right and lower edge.
      train: Without effect; the convolutional stem asks for it.
    """
    del train
    side = self.patch_size
    kernel, bias = _PatchParameters(self.features, side, name='conv')()
    patches = _cut(x.astype(self.dtype), side)
    patches = patches.reshape(*patches.shape[:3], -1)
    kernel = kernel.astype(self.dtype).reshape(-1, self.features)
    x = ops.add_bias(jnp.dot(patches, kernel), bias)
    if self.use_norm:
      x = norm.LayerNorm(name='norm')(x)
    return x


class _PatchParameters(nn.Module):
  """Holds what a convolution over patches of an RGB image would hold."""

  features: int
  side: int

  @nn.compact
  def __call__(self) -> tuple[Array, Array]:
    shape = (self.side, self.side, 3, self.features)
    init = layers.uniform_fan_in(3 * self.side**2)
    return (
        parameter(self, 'kernel', init, shape),
        parameter(self, 'bias', init, shape[-1:]),
    )


class PatchMerging(nn.Module):
  """Swin's downsampling: LN and a linear map of each 2x2 neighbours.

      y[i, j] = LN([x[2i, 2j], x[2i+1, 2j], x[2i, 2j+1], x[2i+1, 2j+1]]) W

  Attributes:
    features: Channels of the next stage.
    dtype: Computation dtype.
  """

  features: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], *, train: bool
  ) -> Float[Array, 'b H W f']:
    """Halves the extents, rounded up.

    Args:
      x: The map; zeros fill up an odd extent, at the right and lower edge.
      train: Without effect; the convolutional downsampling asks for it.
    """
    del train
    # Down, then right: the order of the channels in Swin's weights.
    x = _cut(x, 2).swapaxes(3, 4)
    x = x.reshape(*x.shape[:3], -1)
    x = norm.LayerNorm(name='norm')(x)
    return dense.Dense(
        self.features, use_bias=False, dtype=self.dtype, name='linear'
    )(x)


def _cut(
    x: Float[Array, 'b h w c'], side: int
) -> Float[Array, 'b H W {side} {side} c']:
  """Cuts into patches `[b, H, W, row in it, column in it, c]`, zero-padded."""
  batch, height, width, channels = x.shape
  x = jnp.pad(x, ((0, 0), (0, -height % side), (0, -width % side), (0, 0)))
  rows, columns = x.shape[1] // side, x.shape[2] // side
  x = x.reshape(batch, rows, side, columns, side, channels)
  return x.swapaxes(2, 3)
