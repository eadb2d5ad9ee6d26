"""Semantic FPN (Kirillov et al., 2019): a feature pyramid with summed levels.

As in RMT's released segmentation models: the pyramid has 256 channels, the
head 128.
"""

from collections.abc import Sequence

from flax import linen as nn
from flax.typing import Dtype
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models.dense.layers import ConvBN, DecodeHead
from gswinrmt_jax.models.layers import Conv, xavier_uniform
from gswinrmt_jax.ops import padding


class FPN(nn.Module):
  """Feature pyramid (Lin et al., 2017): coarse maps are added to finer ones.

      m_i = Conv1x1(x_i) + nearest(m_{i+1}),    y_i = Conv3x3(m_i)

  without norm or activation. The coarsest map has no second term.

  Attributes:
    features: Channels of every map.
    dtype: Computation dtype.
  """

  features: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self,
      maps: Sequence[Float[Array, 'b _ _ _']],
      extents: Sequence[padding.Extents],
  ) -> list[Float[Array, 'b _ _ f']]:
    """Returns one map per input map, of the same size.

    Args:
      maps: Maps of the backbone, from fine to coarse.
      extents: Valid rows and columns of each map.
    """

    def conv(side, name):
      return Conv(self.features, side, self.dtype, xavier_uniform, name=name)

    merged = [
        conv(1, f'lateral{level}')(x) for level, x in enumerate(maps, start=1)
    ]
    for fine in reversed(range(len(maps) - 1)):
      merged[fine] += ops.resize_nearest(
          merged[fine + 1],
          extents[fine + 1],
          extents[fine],
          size=merged[fine].shape[1:3],
      )
    return [
        conv(3, f'output{level}')(x, valid)
        for level, (x, valid) in enumerate(
            zip(merged, extents, strict=True), start=1
        )
    ]


class SemanticFPNHead(DecodeHead):
  """Resizes all levels to the finest, sums them, classifies each position.

  Level i, counted from 0, has max(i, 1) convolutions. From level 1 on, bilinear
  upsampling by 2 follows each convolution. At odd sizes, twice the coarse size
  is not the fine size, so the result is resized to the finest map.

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
    """Returns logits at the size of the first map of a pyramid."""
    levels = []
    for level, (x, valid) in enumerate(zip(maps, extents, strict=True)):
      for index in range(max(level, 1)):
        name = f'level{level + 1}_conv{index}'
        conv = ConvBN(self.features, 3, self.dtype, name=name)
        x = conv(x, valid, train=train)
        if level:
          coarse, valid = valid, None if valid is None else 2 * valid
          doubled = 2 * x.shape[1], 2 * x.shape[2]
          x = ops.resize_bilinear(x, coarse, valid, size=doubled)
      if level:
        size = maps[0].shape[1:3]
        x = ops.resize_bilinear(x, valid, extents[0], size=size)
      levels.append(x)
    return self.classify(sum(levels[1:], start=levels[0]), train)
