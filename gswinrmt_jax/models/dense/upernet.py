"""UperNet (Xiao et al., 2018): pyramid pooling on top of a feature pyramid.

As in RMT's released segmentation models: 512 channels, and in training an
auxiliary head of 256.
"""

from collections.abc import Sequence

from flax import linen as nn
from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models.dense.layers import ConvBN, PixelClassifier

POOLED = (1, 2, 3, 6)  # bins along each axis


class UperNetHead(nn.Module):
  """Every map at the finest size, joined, and each position classified.

      p   = ConvBN3x3([x_n, resized ConvBN1x1(pool_k(x_n)) for k = 1, 2, 3, 6])
      m_n = p,    m_i = ConvBN1x1(x_i) + resized m_{i+1}
      y_n = p,    y_i = ConvBN3x3(m_i)
      logits = classify(ConvBN3x3([y_1, resized y_2, ..., resized y_n]))

  Unlike in `FPN`, maps are resized bilinearly.

  Attributes:
    num_classes: Number of logits.
    features: Channels of every convolution.
    dropout_rate: Of the classifier.
    dtype: Computation dtype.
  """

  num_classes: int
  features: int
  dropout_rate: float
  dtype: Dtype

  @nn.compact
  def __call__(
      self, maps: Sequence[Float[Array, 'b _ _ _']], *, train: bool
  ) -> Float[Array, 'b h w k']:
    """Returns logits at the size of the first map, the finest."""

    def conv(x, side, name):
      layer = ConvBN(self.features, side, self.dtype, name=name)
      return layer(x, train=train)

    *fine, last = maps
    context = [last]
    for bins in POOLED:
      pooled = ops.adaptive_average_pool(last, bins=bins)
      context.append(_resized(conv(pooled, 1, f'pool{bins}'), last))
    merged = [
        conv(x, 1, f'lateral{level}') for level, x in enumerate(fine, start=1)
    ]
    merged.append(conv(jnp.concatenate(context, -1), 3, 'pyramid_pooling'))
    for level in reversed(range(len(fine))):
      merged[level] += _resized(merged[level + 1], merged[level])
    outputs = [
        conv(x, 3, f'output{level}')
        for level, x in enumerate(merged[:-1], start=1)
    ]
    outputs.append(merged[-1])
    joined = jnp.concatenate([_resized(y, maps[0]) for y in outputs], -1)
    return PixelClassifier(
        self.num_classes, self.dropout_rate, self.dtype, name='classifier'
    )(conv(joined, 3, 'fusion'), train=train)


class FCNHead(nn.Module):
  """One 3x3 ConvBN and the classifier: the auxiliary head of training.

  Attributes:
    num_classes: Number of logits.
    features: Channels of the convolution.
    dropout_rate: Of the classifier.
    dtype: Computation dtype.
  """

  num_classes: int
  features: int
  dropout_rate: float
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], *, train: bool
  ) -> Float[Array, 'b h w k']:
    """Returns the logits of each position."""
    x = ConvBN(self.features, 3, self.dtype, name='conv')(x, train=train)
    return PixelClassifier(
        self.num_classes, self.dropout_rate, self.dtype, name='classifier'
    )(x, train=train)


def _resized(x, like):
  return ops.resize_bilinear(x, size=like.shape[1:3])
