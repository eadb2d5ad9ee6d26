"""Layers of necks and heads, which keep the size of a map."""

from flax import linen as nn
from flax.typing import Dtype
import jax
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models.layers import BatchNorm, Conv
from gswinrmt_jax.ops import padding

# Of convolutions with BN, and of all layers of mask heads (He et al., 2015).
he_normal = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')


class ConvBN(nn.Module):
  """`ReLU(BN(Conv(x)))`, where the convolution has no bias.

  Attributes:
    features: Output channels.
    side: Side of the kernel, 1 or 3.
    dtype: Computation dtype.
  """

  features: int
  side: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b h w f']:
    """Returns the map; in training, BN uses the batch's statistics."""
    x = Conv(
        self.features,
        self.side,
        self.dtype,
        kernel_init=he_normal,
        use_bias=False,
        name='conv',
    )(x, extents)
    return jax.nn.relu(BatchNorm(name='norm')(x, extents, train=train))


class PixelClassifier(nn.Module):
  """Logits of each position: Dropout2d, then a 1x1 convolution.

  Attributes:
    num_classes: Number of logits.
    dropout_rate: Probability that training drops a channel of an image.
    dtype: Computation dtype; the logits are at least float32.
  """

  num_classes: int
  dropout_rate: float
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], *, train: bool
  ) -> Float[Array, 'b h w k']:
    """Returns the logits; training needs the RNG stream 'dropout'."""
    dropout = nn.Dropout(self.dropout_rate, broadcast_dims=(1, 2))
    return Conv(
        self.num_classes,
        1,
        ops.wide_dtype(self.dtype),
        kernel_init=nn.initializers.normal(0.01),
        name='conv',
    )(dropout(x, deterministic=not train))


class DecodeHead(nn.Module):
  """What decode heads share: settings, and the classifier at the end.

  A head is called with one map or the maps of all stages, from fine to coarse,
  their `extents` (valid rows and columns of each), and `train`: whether BN uses
  the batch's statistics and dropout is active. It returns logits at the size of
  the finest map.

  Attributes:
    num_classes: Number of logits.
    features: Output channels of every convolution.
    dropout_rate: Dropout rate of the classifier.
    dtype: Computation dtype.
  """

  num_classes: int
  features: int
  dropout_rate: float
  dtype: Dtype

  def classify(
      self, x: Float[Array, 'b h w f'], train: bool
  ) -> Float[Array, 'b h w k']:
    """Returns the logits of each position."""
    return PixelClassifier(
        self.num_classes, self.dropout_rate, self.dtype, name='classifier'
    )(x, train=train)
