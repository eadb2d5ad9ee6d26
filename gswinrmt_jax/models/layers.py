"""Convolution layers with PyTorch's initialisation; stem and downsampling."""

import math

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models import norm
from gswinrmt_jax.models.parameter import parameter


def uniform_fan_in(fan_in: int) -> jax.nn.initializers.Initializer:
  """PyTorch's default for convolutions: uniform within `+-1 / sqrt(fan_in)`."""
  bound = 1 / math.sqrt(fan_in)

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


class DepthwiseParameters(nn.Module):
  """Kernel and bias of a depthwise convolution.

  Attributes:
    kernel_size: Odd side of the kernels.
  """

  kernel_size: int

  @nn.compact
  def __call__(
      self, channels: int
  ) -> tuple[Float[Array, 'k k 1 c'], Float[Array, ' c']]:
    """Returns them for so many channels."""
    init = uniform_fan_in(self.kernel_size**2)
    shape = (self.kernel_size, self.kernel_size, 1, channels)
    return (
        parameter(self, 'kernel', init, shape),
        parameter(self, 'bias', init, shape[-1:]),
    )


class DepthwiseConv(nn.Module):
  """Depthwise convolution, `same` size, and its bias.

  Attributes:
    kernel_size: Odd side of the kernels.
    dtype: Computation dtype.
    impl: See `ops.depthwise_conv`.
  """

  kernel_size: int
  dtype: Dtype
  impl: str

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c']
  ) -> tuple[Float[Array, 'b h w c'], Float[Array, ' c']]:
    """Returns the convolved channels, and the bias that is still to be added.

    A linear layer behind it takes the bias into its own.
    """
    parameters = DepthwiseParameters(self.kernel_size, name='parameters')
    nn.share_scope(self, parameters)
    kernel, bias = parameters(x.shape[-1])
    return (
        ops.depthwise_conv(x.astype(self.dtype), kernel, impl=self.impl),
        bias,
    )


class Conv3x3(nn.Module):
  """3x3 convolution with bias, padded by 1 on every side.

      y = (x * W + b) * after.scale + after.bias

  Attributes:
    features: Output channels.
    stride: 1 or 2.
    dtype: Computation dtype.
  """

  features: int
  stride: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      *,
      after: norm.Affine = norm.NOTHING,
  ) -> Float[Array, 'b H W f']:
    """Convolves to `ceil(extent / stride)` rows and columns."""
    channels = x.shape[-1]
    init = uniform_fan_in(9 * channels)
    shape = (3, 3, channels, self.features)
    kernel = parameter(self, 'kernel', init, shape)
    bias = parameter(self, 'bias', init, shape[-1:])
    kernel, bias = after.behind(kernel, bias)
    y = ops.conv3x3(x.astype(self.dtype), kernel, stride=self.stride)
    return ops.add_bias(y, bias)


class Stem(nn.Module):
  """Four 3x3 convolutions, overall stride 4 (Gated-SwinRMT, Table 1).

      s2 C/2, BN, GELU; s1 C/2, BN, GELU; s2 C, BN, GELU; s1 C, BN

  Attributes:
    features: Channels `C` of the first stage.
    dtype: Computation dtype.
  """

  features: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w 3'], *, train: bool
  ) -> Float[Array, 'b H W c']:
    """Embeds the image at a quarter of its extents, rounded up."""
    half = self.features // 2
    layers = ((half, 2), (half, 1), (self.features, 2), (self.features, 1))
    for index, (features, stride) in enumerate(layers):
      conv = Conv3x3(features, stride, self.dtype, name=f'conv{index}')
      batch_norm = norm.BatchNorm(
          self.dtype, gelu=index < len(layers) - 1, name=f'norm{index}'
      )
      x = batch_norm(conv, x, train=train)
    return x


class Downsample(nn.Module):
  """3x3 convolution of stride 2 and BN: patch merging between stages.

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
    """Halves the extents, rounded up."""
    conv = Conv3x3(self.features, 2, self.dtype, name='conv')
    return norm.BatchNorm(self.dtype, name='norm')(conv, x, train=train)
