"""Linear layers, convolutions and norms.

Parameters are float32; a layer computes in `dtype`. Flax's layers are not used
where results would differ: its Dense and Conv sum the gradient of a bfloat16
bias in bfloat16 (25,088 ones are 8,192 and 1,024 on a CPU), and its BatchNorm
stores the biased variance. Its LayerNorm gives the same, but is traced again in
each layer: the program of a gradient of `retention_compact` has 12,344 lines
instead of 9,221, and takes 4.2 s to write instead of 3.3 s.
"""

import functools
import math

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.ops import padding

Initializer = jax.nn.initializers.Initializer

_MOMENTUM = 0.9  # of the running statistics, 1 minus PyTorch's


def _draw(draw, scale, key, shape, dtype=jnp.float32):
  """Returns `scale * draw(key, shape, dtype)`, with few programs to compile.

  Element i of a draw depends only on the key and i, so a longer draw begins
  with the same elements. Each length needs its own program, which takes a third
  of a second to compile. With powers of 4, a model has a dozen lengths.
  """
  size = math.prod(shape)
  digits = ((size - 1).bit_length() + 1) // 2  # in base 4
  drawn = scale * draw(key, (4 ** max(digits, 3),), dtype)
  return drawn[:size].reshape(shape)


# Draws from N(0, 0.02^2); PyTorch truncates at +-2, which is 100 sigma.
linear_init = functools.partial(_draw, jax.random.normal, 0.02)
xavier_uniform = nn.initializers.xavier_uniform()


def uniform_fan_in(fan_in: int) -> Initializer:
  """Returns PyTorch's default initialiser: uniform, `+-1 / sqrt(fan_in)`."""
  bound = 1 / math.sqrt(fan_in)
  uniform = functools.partial(jax.random.uniform, minval=-bound, maxval=bound)
  return functools.partial(_draw, uniform, 1)


class Dense(nn.Module):
  """A linear layer of each token, `y = x W + b`.

  Attributes:
    features: Output channels.
    dtype: Computation dtype.
    use_bias: Whether there is a `b`.
    start: Initialisation: 'normal' draws `W` from N(0, 0.02^2) with `b = 0`, as
      in RMT; 'uniform' draws both within `+-1 / sqrt(c)`, PyTorch's default;
      'xavier' draws `W` within `+-sqrt(6 / (c + f))` with `b = 0`.
  """

  features: int
  dtype: Dtype
  use_bias: bool = True
  start: str = 'normal'

  @nn.compact
  def __call__(self, x: Float[Array, '*b c']) -> Float[Array, '*b f']:
    """Applies the layer to the channels of each token."""
    shape = (x.shape[-1], self.features)
    kernel_init, bias_init = linear_init, nn.initializers.zeros
    if self.start == 'uniform':
      kernel_init = bias_init = uniform_fan_in(x.shape[-1])
    elif self.start == 'xavier':
      kernel_init = xavier_uniform
    kernel = self.param('kernel', kernel_init, shape, jnp.float32)
    bias = None
    if self.use_bias:
      bias = self.param('bias', bias_init, shape[1:], jnp.float32)
    return ops.dense(x.astype(self.dtype), kernel, bias)


class Conv(nn.Module):
  """3x3 convolution, padded with zeros, or a linear map of patches.

  Patches tile the map, zero-padded on the right and at the bottom: the stride
  is the side of the kernel, as in a 1x1 convolution.

  Attributes:
    features: Output channels.
    side: Side of the kernel.
    dtype: Computation dtype.
    kernel_init: Initialiser of the kernel; None draws kernel and bias within
      `+-1 / sqrt(fan_in)`, PyTorch's default.
    use_bias: Whether there is a bias.
    bias_init: Initialiser of the bias.
    stride: Stride: the side, or 1 or 2 for 3x3.
  """

  features: int
  side: int
  dtype: Dtype
  kernel_init: Initializer | None = None
  use_bias: bool = True
  bias_init: Initializer = nn.initializers.zeros
  stride: int = 1

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], extents: padding.Extents = None
  ) -> Float[Array, 'b H W f']:
    """Returns a map of `ceil(h / stride)` rows, `ceil(w / stride)` columns.

    Positions beyond `extents` count as 0.
    """
    shape = (self.side, self.side, x.shape[-1], self.features)
    kernel_init, bias_init = self.kernel_init, self.bias_init
    if kernel_init is None:
      kernel_init = bias_init = uniform_fan_in(math.prod(shape[:-1]))
    kernel = self.param('kernel', kernel_init, shape, jnp.float32)
    x = padding.fill(x.astype(self.dtype), extents)
    if self.stride == self.side:
      patches = cut_patches(x, self.side)
      patches = patches.reshape(*patches.shape[:3], -1)
      y = ops.dense(patches, kernel.reshape(-1, self.features))
    else:
      y = self.convolve(x, kernel, stride=self.stride)
    if not self.use_bias:
      return y
    bias = self.param('bias', bias_init, shape[-1:], jnp.float32)
    return ops.add_bias(y, bias)

  def convolve(self, x, kernel, *, stride):
    """Returns the convolution, which `plain_convolutions` replaces."""
    return ops.conv3x3(x, kernel, stride=stride)


class DepthwiseConv(nn.Module):
  """Depthwise convolution with bias, zero-padded to the same size.

  Attributes:
    kernel_size: Side of the kernels, odd.
    dtype: Computation dtype.
  """

  kernel_size: int
  dtype: Dtype

  @nn.compact
  def __call__(
      self, x: Float[Array, 'b h w c'], extents: padding.Extents = None
  ) -> Float[Array, 'b h w c']:
    """Returns the convolved map."""
    side = self.kernel_size
    init = uniform_fan_in(side**2)
    shape = side, side, 1, x.shape[-1]
    kernel = self.param('kernel', init, shape, jnp.float32)
    bias = self.param('bias', init, shape[-1:], jnp.float32)
    x = x.astype(self.dtype)
    if extents is not None:
      x = padding.fill(x, extents)
    return ops.add_bias(self.convolve(x, kernel), bias)

  def convolve(self, x, kernel):
    """Returns the convolution, which `plain_convolutions` replaces."""
    return ops.depthwise_conv(x, kernel)


def plain_convolutions(next_function, args, kwargs, context):
  """Computes convolutions by XLA's operation on every device.

      with nn.intercept_methods(plain_convolutions):
        model.apply(variables, images, train=False)

  The program then has no form that is for CPUs only, as a runtime other than
  JAX needs it, and so does forward-mode differentiation on a CPU (`jax.jvp`,
  `jax.jacfwd`, `jax.linearize`).
  """
  is_convolution = context.method_name == 'convolve'
  return (ops.plain_conv if is_convolution else next_function)(*args, **kwargs)


class LayerNorm(nn.Module):
  """LayerNorm over channels.

  Attributes:
    epsilon: Added to the variance.
  """

  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, x: Float[Array, '*b c']) -> Float[Array, '*b c']:
    """Returns the normalised tokens, in the dtype of `x`."""
    shape, dtype = x.shape[-1:], jnp.float32
    scale = self.param('scale', nn.initializers.ones, shape, dtype)
    bias = self.param('bias', nn.initializers.zeros, shape, dtype)
    return ops.layer_norm(x, scale, bias, self.epsilon)


class BatchNorm(nn.Module):
  """Batch normalisation with PyTorch's running statistics, for RMT's weights.

  The running variance is updated with the unbiased batch variance. Statistics
  are those of the global batch, for any number of devices, in two passes.

  Raises:
    ValueError: In training, if each channel has a single value, whose variance
      is 0: evaluation would differ from training without bounds.
  """

  @nn.compact
  def __call__(
      self,
      x: Float[Array, 'b h w c'],
      extents: padding.Extents = None,
      *,
      train: bool,
  ) -> Float[Array, 'b h w c']:
    """Normalises by batch statistics in training, else by running ones."""
    shape, dtype = x.shape[-1:], jnp.float32
    scale = self.param('scale', nn.initializers.ones, shape, dtype)
    bias = self.param('bias', nn.initializers.zeros, shape, dtype)
    running_mean = self.variable('batch_stats', 'mean', jnp.zeros, shape, dtype)
    running_var = self.variable('batch_stats', 'var', jnp.ones, shape, dtype)
    mean, var = running_mean.value, running_var.value
    if train:
      if x.size == x.shape[-1] and not self.is_initializing():
        raise ValueError(
            'BatchNorm needs more than one value per channel in training: take '
            'batches of two images or more'
        )
      mean, var = ops.batch_statistics(x, extents)
      if not self.is_initializing():
        count = padding.count(x, extents)
        self._update(running_mean, mean)
        self._update(running_var, var * (count / jnp.maximum(count - 1, 1)))
    return ops.batch_norm(x, mean, var, scale, bias)

  def _update(self, running, value):
    old = running.value
    running.value = _MOMENTUM * old + (1 - _MOMENTUM) * value


def cut_patches(
    x: Float[Array, 'b h w c'], side: int
) -> Float[Array, 'b H W {side} {side} c']:
  """Cuts a map, zero-padded, into patches `[b, H, W, row, column, c]`."""
  batch, height, width, channels = x.shape
  x = jnp.pad(x, ((0, 0), (0, -height % side), (0, -width % side), (0, 0)))
  rows, columns = x.shape[1] // side, x.shape[2] // side
  x = x.reshape(batch, rows, side, columns, side, channels)
  return x.swapaxes(2, 3)
