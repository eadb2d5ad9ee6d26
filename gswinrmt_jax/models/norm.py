"""Normalisation: over the batch, with PyTorch's bookkeeping; over channels."""

from typing import NamedTuple, Protocol

from flax import linen as nn
from flax.typing import Dtype
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.models.parameter import parameter
from gswinrmt_jax.ops.arrays import along_channels
from gswinrmt_jax.ops.launches import gradient_in_one_launch, in_one_launch
from gswinrmt_jax.ops.traced import traced_once


class BatchNorm(nn.Module):
  """A linear layer and batch normalisation, as the RMT weights expect it.

      y = (z - mean) / sqrt(var + epsilon) * scale + bias,  z = layer(x)

  and GELU of it where that follows. Three things differ from `nn.BatchNorm`:
  the running variance takes the unbiased batch variance (PyTorch), the variance
  is not `E[z^2] - E[z]^2`, which is 0 for a channel whose mean is large beside
  its spread (`ops.batch_norm`), and statistics are over the global batch
  whatever the device count.

  In evaluation, where the statistics are given, all of it is in the layer's
  kernel and bias.

  Attributes:
    dtype: Dtype of the result; everything inside is float32 at least.
    gelu: Whether GELU follows.
    momentum: Weight of the old running statistics.
    epsilon: Added to the variance.
  """

  dtype: Dtype
  gelu: bool = False
  momentum: float = 0.9
  epsilon: float = 1e-5

  @nn.compact
  def __call__(
      self, layer: 'LinearLayer', x: Float[Array, 'b h w c'], *, train: bool
  ) -> Float[Array, 'b H W f']:
    """Normalises by the batch's statistics in training, else the running."""
    shape = (layer.features,)
    scale = parameter(self, 'scale', nn.initializers.ones, shape)
    bias = parameter(self, 'bias', nn.initializers.zeros, shape)
    running_mean = self.variable('batch_stats', 'mean', jnp.zeros, shape)
    running_var = self.variable('batch_stats', 'var', jnp.ones, shape)

    if not train:
      factor = scale * jax.lax.rsqrt(running_var.value + self.epsilon)
      y = layer(x, after=Affine(factor, bias - running_mean.value * factor))
      return ops.gelu(y) if self.gelu else y
    z = layer(x)
    y, mean, var = ops.batch_norm(
        z, scale, bias, epsilon=self.epsilon, gelu=self.gelu
    )
    if not self.is_initializing():
      count = z.size // z.shape[-1]
      unbiased = var * (count / max(count - 1, 1))
      self._update(running_mean, mean)
      self._update(running_var, unbiased)
    return y.astype(self.dtype)

  def _update(self, running, value):
    old = running.value
    running.value = self.momentum * old + (1 - self.momentum) * value


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
    scale, bias = _affine(self, x.shape[-1])
    return ops.layer_norm(x, scale, bias, epsilon=self.epsilon)


class Affine(NamedTuple):
  """What a layer leaves to the linear layer before or behind it.

  Attributes:
    scale: Of its channels; None for 1.
    bias: Added to them then; None for 0.
  """

  scale: Float[Array, ' c'] | None
  bias: Float[Array, ' c'] | None

  @traced_once()
  def ahead_of(
      self,
      kernel: Float[Array | np.ndarray, 'c f'],
      bias: Float[Array | np.ndarray, ' f'],
  ) -> tuple[Float[Array, 'c f'], Float[Array, ' f']]:
    """Returns kernel and bias of a layer that does this to its input."""
    if self.bias is not None:
      bias = bias + (self.bias[:, None] * kernel).sum(0)
      bias = in_one_launch(bias, 'forward')
    if self.scale is not None:
      kernel = in_one_launch(kernel * self.scale[:, None], 'forward')
    return kernel, bias

  @traced_once()
  def behind(
      self,
      kernel: Float[Array | np.ndarray, '*k f'],
      bias: Float[Array | np.ndarray, ' f'],
  ) -> tuple[Float[Array, '*k f'], Float[Array, ' f']]:
    """Returns kernel and bias of a layer that does this to its result."""
    if self.scale is not None:
      scale = along_channels(self.scale, kernel)
      kernel = _product(kernel, jnp.broadcast_to(scale, kernel.shape))
      bias = _product(bias, self.scale)
    return kernel, bias if self.bias is None else bias + self.bias


def _product(x, y):
  """Of arrays of one shape; it and its gradients in few launches."""
  x, y = (gradient_in_one_launch(each) for each in (x, y))
  return in_one_launch(x * y, 'forward')


NOTHING = Affine(None, None)


class LinearLayer(Protocol):
  """A layer that takes what stands behind it into its kernel and bias."""

  features: int

  def __call__(self, x: Array, *, after: Affine = ...) -> Array:
    """Returns `(x W + b) * after.scale + after.bias`."""


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
    return ops.normalize(x), _affine(self, x.shape[-1])


class AffineParameters(nn.Module):
  """Scale and bias of a LayerNorm that something else computes."""

  @nn.compact
  def __call__(self, channels: int) -> Affine:
    """Returns them for so many channels."""
    return _affine(self, channels)


def _affine(module: nn.Module, channels: int) -> Affine:
  """Makes scale and bias under the names that flax gives them."""
  return Affine(
      parameter(module, 'scale', nn.initializers.ones, (channels,)),
      parameter(module, 'bias', nn.initializers.zeros, (channels,)),
  )
