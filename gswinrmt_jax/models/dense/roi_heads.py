"""Heads on pooled boxes: their class and shape, and the mask of the object."""

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models.dense.layers import ConvBN, he_normal
from gswinrmt_jax.models.layers import Conv, Dense


class BoxHead(nn.Module):
  """Convolutions with BN, linear layers with ReLU; then classes and boxes.

  Attributes:
    num_classes: Number of classes; background is one more, the last.
    convs: Channels of each 3x3 convolution.
    layers: Channels of each linear layer.
    dtype: Computation dtype; outputs are at least float32.
  """

  num_classes: int
  convs: tuple[int, ...]
  layers: tuple[int, ...]
  dtype: Dtype

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b r p p c'],
      valid: Bool[Array, 'b r'],
      *,
      train: bool,
  ) -> tuple[Float[Array, 'b r _'], Float[Array, 'b r k 4']]:
    """Returns logits, and deltas for each class.

    Args:
      x: Pooled boxes.
      valid: Which boxes are used; others do not count in BN.
      train: Whether BN uses the batch's statistics.
    """
    batch, boxes, side = x.shape[:3]
    x = x.reshape(-1, *x.shape[2:])
    extents = jnp.where(valid.reshape(-1, 1), side, 0).repeat(2, axis=1)
    for index, channels in enumerate(self.convs):
      conv = ConvBN(channels, 3, self.dtype, name=f'convs_{index}')
      x = conv(x, extents, train=train)
    x = x.reshape(batch, boxes, -1)
    for index, channels in enumerate(self.layers):
      linear = Dense(
          channels, self.dtype, start='xavier', name=f'layers_{index}'
      )
      x = jax.nn.relu(linear(x))
    wide = ops.wide_dtype(self.dtype)

    def last(features, std, name):
      init = nn.initializers.normal(std)
      return nn.Dense(features, dtype=wide, kernel_init=init, name=name)(x)

    deltas = last(4 * self.num_classes, 0.001, 'deltas')
    logits = last(self.num_classes + 1, 0.01, 'logits')
    return logits, deltas.reshape(batch, boxes, -1, 4)


class MaskHead(nn.Module):
  """Four 3x3 convolutions, a transposed one that doubles the side; all ReLU.

  Attributes:
    num_classes: Number of classes, each with a mask of its own.
    channels: Channels of all convolutions.
    dtype: Computation dtype; outputs are at least float32.
  """

  num_classes: int
  channels: int
  dtype: Dtype

  @nn.compact
  def __call__(self, x: Float[Array, 'b r p p c']) -> Float[Array, 'b r _ _ k']:
    """Returns the logits of each class in `2p x 2p` cells of the boxes."""
    leading = x.shape[:2]
    x = x.reshape(-1, *x.shape[2:])
    for index in range(4):
      conv = Conv(
          self.channels, 3, self.dtype, he_normal, name=f'convs_{index}'
      )
      x = jax.nn.relu(conv(x))
    x = jax.nn.relu(Double(self.channels, self.dtype, name='upsample')(x))
    wide = ops.wide_dtype(self.dtype)
    logits = Conv(self.num_classes, 1, wide, he_normal, name='logits')(x)
    return logits.reshape(*leading, *logits.shape[1:])


class Double(nn.Module):
  """Transposed 2x2 convolution of stride 2: each position becomes four.

      y[2i + u, 2j + v] = x[i, j] kernel[u, v] + bias

  Attributes:
    features: Output channels.
    dtype: Computation dtype.
  """

  features: int
  dtype: Dtype

  @nn.compact
  def __call__(self, x: Float[Array, 'b h w c']) -> Float[Array, 'b _ _ f']:
    """Returns the map of twice the size."""
    shape = (2, 2, x.shape[-1], self.features)
    kernel = self.param('kernel', he_normal, shape, jnp.float32)
    kernel = kernel.astype(self.dtype)
    bias = self.param('bias', nn.initializers.zeros, shape[-1:], jnp.float32)
    y = jnp.einsum('bijc,uvcf->biujvf', x.astype(self.dtype), kernel)
    batch, height, width = x.shape[:3]
    y = y.reshape(batch, 2 * height, 2 * width, -1)
    return ops.add_bias(y, bias)
