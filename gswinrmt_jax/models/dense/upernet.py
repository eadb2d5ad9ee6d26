"""UperNet (Xiao et al., 2018): pyramid pooling on top of a feature pyramid.

As in RMT's released segmentation models: the head has 512 channels, and an
auxiliary head for training has 256.
"""

from collections.abc import Sequence

from flax import linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models.dense.layers import ConvBN, DecodeHead
from gswinrmt_jax.ops import padding

POOLED = (1, 2, 3, 6)  # bins along each axis


class UperNetHead(DecodeHead):
  """Resizes all maps to the finest, concatenates, classifies each position.

      p   = ConvBN3x3([x_n, resized ConvBN1x1(pool_k(x_n)) for k = 1, 2, 3, 6])
      m_n = p,    m_i = ConvBN1x1(x_i) + resized m_{i+1}
      y_n = p,    y_i = ConvBN3x3(m_i)
      logits = classify(ConvBN3x3([y_1, resized y_2, ..., resized y_n]))

  Unlike in `FPN`, maps are resized bilinearly.

  Attributes and arguments are those of `DecodeHead`.
  """

  @nn.compact
  def __call__(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      extents: Sequence[padding.Extents],
      *,
      train: bool,
  ) -> Float[Array, 'b h w k']:
    """Returns logits at the size of the first map, the finest."""
    coarsest = len(maps) - 1

    def conv(x, extents, side, name):
      layer = ConvBN(self.features, side, self.dtype, name=name)
      return layer(x, extents, train=train)

    def resized(x, valid, level):
      size = maps[level].shape[1:3]
      return ops.resize_bilinear(x, valid, extents[level], size=size)

    context = [maps[-1]]
    for bins in POOLED:
      pooled = ops.adaptive_average_pool(maps[-1], extents[-1], bins=bins)
      pooled = conv(pooled, None, 1, f'pool{bins}')  # All bins are valid.
      context.append(resized(pooled, None, coarsest))
    merged = [
        conv(maps[level], extents[level], 1, f'lateral{level + 1}')
        for level in range(coarsest)
    ]
    context = jnp.concatenate(context, -1)
    merged.append(conv(context, extents[-1], 3, 'pyramid_pooling'))
    for level in reversed(range(coarsest)):
      coarse = level + 1
      merged[level] += resized(merged[coarse], extents[coarse], level)
    outputs = [
        conv(merged[level], extents[level], 3, f'output{level + 1}')
        for level in range(coarsest)
    ]
    outputs.append(merged[-1])
    joined = outputs[:1] + [
        resized(outputs[level], extents[level], 0)
        for level in range(1, len(maps))
    ]
    joined = jnp.concatenate(joined, -1)
    return self.classify(conv(joined, extents[0], 3, 'fusion'), train)


class FCNHead(DecodeHead):
  """The auxiliary head for training: a 3x3 ConvBN and the classifier.

  Attributes and arguments are those of `DecodeHead`.
  """

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b h w k']:
    """Returns the logits of each position."""
    conv = ConvBN(self.features, 3, self.dtype, name='conv')
    return self.classify(conv(x, extents, train=train), train)
