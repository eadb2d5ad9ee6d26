"""Linear layers with the papers' initialisation, and what joins them."""

from collections.abc import Callable
import functools
from typing import NamedTuple

from flax import linen as nn
from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax import ops
from gswinrmt_jax.models.norm import Affine, NOTHING
from gswinrmt_jax.models.parameter import parameter
from gswinrmt_jax.ops.launches import gradient_in_one_launch

# Normal, not rescaled-truncated: PyTorch's truncation at +-2 is 100 sigma off.
linear_init = nn.initializers.normal(0.02)

Dense = functools.partial(nn.Dense, kernel_init=linear_init)


class Onto(NamedTuple):
  """What a residual branch is added to.

  Attributes:
    map: The map.
    keep: What each sample's branch is multiplied by before (stochastic depth);
      None for 1.
    gate: What the sum is multiplied by, positive; None for 1.
  """

  map: Float[Array, 'b h w f']
  keep: Float[Array, ' b'] | None = None
  gate: Float[Array, 'b h w f'] | None = None


class FusedDense(nn.Module):
  """Several linear layers of one input, computed together.

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
      self,
      x: Float[Array, 'b h w c'],
      before: Affine = NOTHING,
      reorder: Callable[[str, Array], Array] = lambda name, array: array,
  ) -> list[Float[Array, 'b h w f']]:
    """Returns one map per name, of `x * before.scale + before.bias`.

    Args:
      x: The input.
      before: What is done to it first.
      reorder: Puts kernel and bias of a name in the order that the channels
        of its map are to have.
    """
    parameters = []
    for name in self.names:
      layer = _DenseParameters(self.features, name=name)(x.shape[-1])
      parameters.append(
          [reorder(name, gradient_in_one_launch(array)) for array in layer]
      )
    kernels, biases = zip(*parameters, strict=True)
    kernel, bias = before.ahead_of(
        jnp.concatenate(kernels, axis=1), jnp.concatenate(biases)
    )
    x = x.astype(self.dtype)
    return ops.dense_parts(x, kernel, bias, parts=len(self.names))


class AffineDense(nn.Module):
  """A linear layer with what stands before and behind it.

      z = (x * before.scale + before.bias) W + b
      y = z * after.scale + after.bias

  and GELU of it, or the sum with what it is a branch of. `before` and `after`
  go into kernel and bias: they and their gradients then read arrays of the size
  of the kernel instead of maps.

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
      before: Affine = NOTHING,
      after: Affine = NOTHING,
      onto: Onto | None = None,
  ) -> Float[Array, 'b h w f']:
    """Applies all of it.

    Args:
      x: The input.
      before: What is done to it first.
      after: What is done to the result.
      onto: What that is added to then, if anything; not with GELU.
    """
    dense = _DenseParameters(self.features, name='dense')
    nn.share_scope(self, dense)
    kernel, bias = after.behind(*before.ahead_of(*dense(x.shape[-1])))
    x = x.astype(self.dtype)
    if self.gelu:
      return ops.dense_gelu(x, kernel, bias)
    if onto is None:
      return ops.dense(x, kernel, bias)
    return ops.residual_dense(x, kernel, bias, *onto)


class _DenseParameters(nn.Module):
  """Holds what `nn.Dense` of this name would hold."""

  features: int

  @nn.compact
  def __call__(self, in_features: int) -> tuple[Array, Array]:
    shape = (in_features, self.features)
    return (
        parameter(self, 'kernel', linear_init, shape),
        parameter(self, 'bias', nn.initializers.zeros, shape[1:]),
    )
