"""Linear and convolution layers with the papers' initialisation."""

import functools
import math
from typing import NamedTuple

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

gelu = functools.partial(jax.nn.gelu, approximate=False)


def uniform_fan_in(fan_in: int) -> jax.nn.initializers.Initializer:
  """PyTorch's default for convolutions: uniform within `+-1 / sqrt(fan_in)`."""
  bound = 1 / math.sqrt(fan_in)

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  return init


class LayerNorm(nn.Module):
  """LayerNorm over channels.

      y = (x - mean) / sqrt(var + epsilon) * scale + bias

  Attributes:
    epsilon: Added to the variance.
  """

  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, x: Float[Array, '*b c']) -> Float[Array, '*b c']:
    """Returns the normalised map, in its dtype."""
    scale, bias = _norm_parameters(self, x.shape[-1:])
    return ops.layer_norm(x, scale, bias, self.epsilon)


class Affine(NamedTuple):
  """What a layer leaves to the linear layers behind it.

  Attributes:
    scale: Of its channels; None for 1.
    bias: Added to them then.
  """

  scale: Float[Array, ' c'] | None
  bias: Float[Array, ' c']


class Normalization(nn.Module):
  """LayerNorm whose scale and bias go into the linear layers behind it.

      (x' scale + bias) W + b = x' (diag(scale) W) + (bias W + b)

  Their gradients are then sums over a kernel, not over a map.
  """

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c']
  ) -> tuple[Float[Array, 'b h w c'], Affine]:
    """Returns the normalised map, and what is still to be applied to it."""
    return ops.normalize(x), _norm_parameters(self, x.shape[-1:])


def _norm_parameters(module: nn.Module, shape: tuple[int]) -> Affine:
  """Makes scale and bias under the names that flax gives them."""
  return Affine(
      module.param('scale', nn.initializers.ones, shape, jnp.float32),
      module.param('bias', nn.initializers.zeros, shape, jnp.float32),
  )


def add_bias(
    x: Float[Array, 'b h w c'], bias: Float[Array, ' c']
) -> Float[Array, 'b h w c']:
  """Adds it to each channel, in the dtype of the map.

  Not in float32: the gradient of the map would be written in it as well, for
  the sum that is the bias's.
  """
  return x + bias.astype(x.dtype)[None, None, None]


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
      self, x: Float[Array, 'b h w c'], before: Affine | None = None
  ) -> list[Float[Array, 'b h w f']]:
    """Returns one map per name, of `x * before.scale + before.bias`."""
    parameters = [
        _DenseParameters(self.features, name=name)(x.shape[-1])
        for name in self.names
    ]
    kernels, biases = zip(*parameters, strict=True)
    kernel, bias = _with_affine(
        jnp.concatenate(kernels, axis=1), jnp.concatenate(biases), before
    )
    y = jnp.dot(x.astype(self.dtype), kernel.astype(self.dtype))
    # Cut before the biases are added: what needs one map then reads one.
    return [
        add_bias(part, bias)
        for part, bias in zip(
            jnp.split(y, len(self.names), axis=-1),
            jnp.split(bias.astype(self.dtype), len(self.names)),
            strict=True,
        )
    ]


class AffineDense(nn.Module):
  """A linear layer with what stands before and behind it.

      y = scale * ((x * before.scale + before.bias) W + b)      [and GELU of it]

  Both go into kernel and bias: they and their gradients then read arrays of
  the size of the kernel instead of maps.

  Attributes:
    features: Output channels.
    dtype: Computation dtype.
    gelu: Whether GELU follows.
  """

  features: int
  dtype: Dtype
  gelu: bool = False

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      *,
      before: Affine | None = None,
      scale: Float[Array, ' f'] | None = None,
  ) -> Float[Array, 'b h w f']:
    """Applies all of it; None leaves a part out."""
    dense = _DenseParameters(self.features, name='dense')
    nn.share_scope(self, dense)
    kernel, bias = _with_affine(*dense(x.shape[-1]), before)
    if scale is not None:
      kernel, bias = kernel * scale[None], bias * scale
    y = jnp.dot(x.astype(self.dtype), kernel.astype(self.dtype))
    return (ops.biased_gelu if self.gelu else add_bias)(y, bias)


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


def _with_affine(
    kernel: Float[Array, 'c f'], bias: Float[Array, ' f'], before: Affine | None
) -> tuple[Float[Array, 'c f'], Float[Array, ' f']]:
  """Returns kernel and bias of the layer that does both."""
  if before is None:
    return kernel, bias
  bias += (before.bias[:, None] * kernel).sum(0)
  if before.scale is not None:
    kernel *= before.scale[:, None]
  return kernel, bias


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
    init = uniform_fan_in(self.kernel_size**2)
    shape = (self.kernel_size, self.kernel_size, 1, x.shape[-1])
    kernel = self.param('kernel', init, shape, jnp.float32)
    bias = self.param('bias', init, shape[-1:], jnp.float32)
    return (
        ops.depthwise_conv(x.astype(self.dtype), kernel, impl=self.impl),
        bias,
    )


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
    return add_bias(y, bias)


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
