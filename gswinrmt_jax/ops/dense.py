"""Linear layers and what follows them.

On a CPU as they are written. On a GPU the backward pass is by hand, the
gradient of a bias a row of the kernel's product, and large maps have a forward
pass of their own: XLA's Triton products end with sums and factors that are
arrays by then, of matrices, numbers of a channel or numbers of a token. So a
bias, and what a branch is added to, need no pass of their own, if nothing that
is computed stands in their place. That is what the barriers there are for,
which cost kernels: small maps do without.
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops import bias as bias_lib
from gswinrmt_jax.ops import gelu as gelu_lib
from gswinrmt_jax.ops.arrays import (
    along_channels,
    channels_last,
    is_large,
    token_product,
    wide,
    wide_dtype,
)
from gswinrmt_jax.ops.backend import platform
from gswinrmt_jax.ops.launches import in_one_launch
from gswinrmt_jax.ops.traced import traced_once

_ONES = 64  # Channels of ones, which fill a tile of the product.


@traced_once()
def dense(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'],
) -> Float[Array, 'b h w f']:
  """A linear layer of each token, `x W + b`.

  Products and the gradients of kernel and bias are added up in float32 at
  least.

  Args:
    x: A map, in the dtype of the computation.
    kernel: Cast to `x.dtype`.
    bias: Added.

  Returns:
    The map, in `x.dtype`.
  """
  if is_large(x):
    return _dense(x, kernel, bias)
  if platform() != 'cpu':
    return _small(x, kernel, bias)
  return bias_lib.add_bias(_matmul(x, kernel.astype(x.dtype)), bias)


@traced_once('parts')
def dense_parts(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'],
    *,
    parts: int,
) -> list[Float[Array, 'b h w g']]:
  """`dense`, cut into parts of as many channels each.

  Of a large map a product each, so that no part is cut out of a map; backward
  one.
  """
  if is_large(x):
    return _parts(x, kernel, bias, parts)
  return jnp.split(dense(x, kernel, bias), parts, axis=-1)


@traced_once()
def residual_dense(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'],
    residual: Float[Array, 'b h w f'],
    keep: Float[Array, ' b'] | None = None,
    gate: Float[Array, 'b h w f'] | None = None,
) -> Float[Array, 'b h w f']:
  """A linear layer at the end of a residual branch, and the sum behind it.

      y = (residual + keep (x W + b)) gate

  Args:
    x: A map, in the dtype of the computation.
    kernel: As in `dense`.
    bias: As in `dense`.
    residual: What the branch is added to.
    keep: Stochastic depth, a number for each image, without a gradient where
      maps are large; None for 1.
    gate: Positive numbers, or 0 by underflow; None for 1.

  Returns:
    The sum, in `x.dtype`, to which its parts are rounded before.
  """
  if is_large(x):
    return _residual(x, kernel, bias, residual, keep, gate)
  y = dense(x, kernel, bias)
  if keep is not None:
    y *= jnp.expand_dims(keep.astype(y.dtype), (1, 2, 3))
  y += residual
  return y if gate is None else y * gate


@traced_once()
def dense_gelu(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'],
) -> Float[Array, 'b h w f']:
  """GELU of a linear layer, `GELU(x W + b)`; see `gelu.biased_gelu`."""
  if platform() != 'cpu':
    return _gelu(x, kernel, bias)
  return gelu_lib.biased_gelu(_matmul(x, kernel.astype(x.dtype)), bias)


def _matmul(x, kernel):
  """`x W`, of all tokens as the rows of one matrix.

  Of a map with its axes XLA's CPU backend would turn the gradient around in
  memory before the product for the kernel, which then takes half as long again.
  """
  y = x.reshape(-1, x.shape[-1]) @ kernel
  return y.reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _small(x, kernel, bias):
  return _small_forward(x, kernel, bias)[0]


def _small_forward(x, kernel, bias):
  narrow = kernel.astype(x.dtype)
  y = _matmul(x, narrow)
  y = y + along_channels(bias, y).astype(y.dtype)
  return y, (x, narrow, kernel, bias)


@jax.custom_vjp
def _dense(x, kernel, bias):
  return _dense_forward(x, kernel, bias)[0]


def _dense_forward(x, kernel, bias):
  narrow = kernel.astype(x.dtype)
  return _linear(x, narrow, bias), (x, narrow, kernel, bias)


def _linear(x, kernel, bias):
  dtype = wide_dtype(x.dtype)
  y = jnp.dot(x, kernel, preferred_element_type=dtype)
  bias = lax.optimization_barrier(along_channels(bias.astype(dtype), y))
  return (y + bias).astype(x.dtype)


def _dense_backward(residuals, dy):
  x, *_, bias = residuals
  dy = channels_last(dy)
  return _gradients(residuals, dy, *_sums(x, dy, bias))


def _gradients(residuals, dy, dkernel, dbias):
  _, narrow, kernel, bias = residuals
  return (
      jnp.dot(dy, narrow.T),
      dkernel.astype(kernel.dtype),
      dbias.astype(bias.dtype),
  )


def _sums(x, dy, bias):
  """Gradients of kernel and bias, `x^T dy` and `1^T dy`, float32 at least."""
  if x.dtype == wide_dtype(x.dtype):
    # A product might round what it sums.
    dy, dbias = bias_lib.summed(dy, bias)
    return token_product(x, dy), dbias
  # One product for both, of `x` with ones beside it: else the sum is a pass
  # over `dy`. Barriers: else XLA pads `x`, and cuts each part of the product
  # before they are added up.
  channels = x.shape[-1]
  x, dy = (m.reshape(-1, m.shape[-1]) for m in (x, dy))
  ones = lax.optimization_barrier(jnp.ones((x.shape[0], _ONES), x.dtype))
  both = token_product(jnp.concatenate([x, ones], axis=1), dy)
  both = lax.optimization_barrier(in_one_launch(both, 'gradients'))
  dbias = in_one_launch(both[channels], 'gradients')
  return both[:channels], lax.optimization_barrier(dbias)


@jax.custom_vjp
def _gelu(x, kernel, bias):
  return _gelu_forward(x, kernel, bias)[0]


def _gelu_forward(x, kernel, bias):
  narrow = kernel.astype(x.dtype)
  y, (z, _) = gelu_lib.biased_forward(jnp.dot(x, narrow), bias)
  return y, (z, x, narrow, kernel, bias)


def _gelu_backward(residuals, dy):
  z, *residuals = residuals
  return _dense_backward(
      residuals, gelu_lib.biased_gradient(z, residuals[-1], dy)
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _parts(x, kernel, bias, parts):
  return _parts_forward(x, kernel, bias, parts)[0]


def _parts_forward(x, kernel, bias, parts):
  narrow = kernel.astype(x.dtype)
  cut = jnp.split(narrow, parts, axis=1), jnp.split(bias, parts)
  ys = []
  for own_kernel, own_bias in zip(*cut, strict=True):
    # A barrier: else XLA joins the products, two by two.
    own_x, own_bias = lax.optimization_barrier((x, own_bias))
    ys.append(_linear(own_x, own_kernel, own_bias))
  return ys, (x, narrow, kernel, bias)


def _parts_backward(parts, residuals, dys):
  del parts
  return _dense_backward(residuals, jnp.concatenate(dys, axis=-1))


@jax.custom_vjp
def _residual(x, kernel, bias, residual, keep, gate):
  return _residual_forward(x, kernel, bias, residual, keep, gate)[0]


def _residual_forward(x, kernel, bias, residual, keep, gate):
  # As matrices, with a number for each token.
  shape = residual.shape
  y, residuals = _dense_forward(x, kernel, bias)
  y = y.reshape(-1, shape[-1])
  if keep is not None:
    keep = keep.astype(x.dtype)
    tokens = jnp.broadcast_to(keep[:, None, None], shape[:-1])
    tokens = in_one_launch(tokens, 'forward')
    y *= lax.optimization_barrier(tokens.reshape(-1, 1))
  y += lax.optimization_barrier(residual).reshape(y.shape)
  if gate is not None:
    y *= gate.reshape(y.shape)
  y = y.reshape(shape)
  return y, (keep, gate, None if gate is None else y, residuals)


def _residual_backward(residuals, dy):
  """That of the gate is `dy y / gate`: what it gates is not kept."""
  keep, gate, y, residuals = residuals
  dkeep = dgate = None
  if gate is not None:
    gated = wide(dy) * wide(y)
    dgate = jnp.where(gate == 0, 0, gated / wide(gate)).astype(gate.dtype)
    dy *= gate
  dbranch = dy
  if keep is not None:
    dbranch = dy * jnp.expand_dims(keep, (1, 2, 3))
    dkeep = jnp.zeros_like(keep)
  # Where it is computed, it can be summed.
  dbranch, dbias = bias_lib.summed(dbranch, residuals[-1])
  dkernel = token_product(residuals[0], dbranch)
  grads = _gradients(residuals, dbranch, dkernel, dbias)
  return *grads, dy, dkeep, dgate


_gelu.defvjp(_gelu_forward, _gelu_backward)
_small.defvjp(_small_forward, _dense_backward)
_dense.defvjp(_dense_forward, _dense_backward)
_parts.defvjp(_parts_forward, _parts_backward)
_residual.defvjp(_residual_forward, _residual_backward)
