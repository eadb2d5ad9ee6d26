"""Linear and convolution layers with the papers' initialisation."""

import functools
import math

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models import norm

# Normal, not rescaled-truncated: PyTorch's truncation at +-2 is 100 sigma off.
linear_init = nn.initializers.normal(0.02)

Dense = functools.partial(nn.Dense, kernel_init=linear_init)

LayerNorm = functools.partial(
    nn.LayerNorm, epsilon=1e-6, use_fast_variance=False
)

gelu = functools.partial(jax.nn.gelu, approximate=False)


def uniform_fan_in(fan_in: int) -> jax.nn.initializers.Initializer:
  """PyTorch's default for convolutions: uniform within `+-1 / sqrt(fan_in)`."""
  bound = 1 / math.sqrt(fan_in)

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


class FusedDense(nn.Module):
  """Several linear layers of one input, computed as a single product.

  Each keeps parameters of its own name, so checkpoints, and the weight decay
  mask, do not know that they are computed together.

  Attributes:
    features: Channels of each output.
    names: Names of the layers.
    dtype: Computation dtype.
  """

  features: int
  names: tuple[str, ...]
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c']
  ) -> list[Float[Array, 'b h w f']]:
    """Returns one map per name."""
    parameters = [
        _DenseParameters(self.features, name=name)(x.shape[-1])
        for name in self.names
    ]
    kernels, biases = zip(*parameters, strict=True)
    kernel = jnp.concatenate(kernels, axis=1).astype(self.dtype)
    bias = jnp.concatenate(biases).astype(self.dtype)
    y = jnp.dot(x.astype(self.dtype), kernel) + bias[None, None, None]
    return jnp.split(y, len(self.names), axis=-1)


class ScaledDense(nn.Module):
  """A linear layer whose outputs are scaled, `scale * (x W + b)`.

  The scale goes into kernel and bias: it and its gradient then read arrays of
  the size of the kernel instead of maps.

  Attributes:
    features: Output channels.
    dtype: Computation dtype.
  """

  features: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], scale: Float[Array, ' f'] | None
  ) -> Float[Array, 'b h w f']:
    """Applies both; None leaves the scale out."""
    dense = _DenseParameters(self.features, name='dense')
    nn.share_scope(self, dense)
    kernel, bias = dense(x.shape[-1])
    if scale is not None:
      kernel, bias = kernel * scale[None], bias * scale
    kernel, bias = kernel.astype(self.dtype), bias.astype(self.dtype)
    return jnp.dot(x.astype(self.dtype), kernel) + bias[None, None, None]


class _DenseParameters(nn.Module):
  """Holds what `nn.Dense` of this name would hold."""

  features: int

  @nn.compact
  def __call__(self, in_features: int) -> tuple[Array, Array]:
    shape = (in_features, self.features)
    return (
        self.param('kernel', linear_init, shape, jnp.float32),
        self.param('bias', nn.initializers.zeros, shape[1:], jnp.float32),
    )


class DepthwiseConv(nn.Module):
  """Depthwise convolution with bias, `same` size.

  Attributes:
    kernel_size: Odd side of the kernels.
    dtype: Computation dtype.
    impl: See `ops.depthwise_conv`.
  """

  kernel_size: int
  dtype: Dtype
  impl: str

  @nn.compact
  def __call__(self, x: Float[Array, 'b h w c']) -> Float[Array, 'b h w c']:
    """Convolves each channel with its kernel and adds its bias."""
    init = uniform_fan_in(self.kernel_size**2)
    shape = (self.kernel_size, self.kernel_size, 1, x.shape[-1])
    kernel = self.param('kernel', init, shape, jnp.float32)
    bias = self.param('bias', init, shape[-1:], jnp.float32)
    y = ops.depthwise_conv(x.astype(self.dtype), kernel, impl=self.impl)
    return y + bias.astype(self.dtype)[None, None, None]


class Conv3x3(nn.Module):
  """3x3 convolution with bias, padded by 1 on every side.

  Attributes:
    features: Output channels.
    stride: 1 or 2.
    dtype: Computation dtype.
  """

  features: int
  stride: int
  dtype: Dtype

  @nn.compact
  def __call__(self, x: Float[Array, 'b h w c']) -> Float[Array, 'b H W f']:
    """Convolves to `ceil(extent / stride)` rows and columns."""
    channels = x.shape[-1]
    init = uniform_fan_in(9 * channels)
    shape = (3, 3, channels, self.features)
    kernel = self.param('kernel', init, shape, jnp.float32)
    bias = self.param('bias', init, shape[-1:], jnp.float32)
    y = ops.conv3x3(x.astype(self.dtype), kernel, stride=self.stride)
    return y + bias.astype(self.dtype)[None, None, None]


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
      x = Conv3x3(features, stride, self.dtype, name=f'conv{index}')(x)
      x = norm.BatchNorm(self.dtype, name=f'norm{index}')(x, train=train)
      if index < len(layers) - 1:
        x = gelu(x)
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
    x = Conv3x3(self.features, 2, self.dtype, name='conv')(x)
    return norm.BatchNorm(self.dtype, name='norm')(x, train=train)
