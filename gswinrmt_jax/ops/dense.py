"""Linear layers whose products end with all that follows: bias and residual."""

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops import bias as bias_lib
from gswinrmt_jax.ops.arrays import wide_dtype


@jax.custom_vjp
def dense(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'],
) -> Float[Array, 'b h w f']:
  """A linear layer of each token, `x W + b`.

  The product, its sum with the bias and the gradients of kernel and bias are in
  float32 at least.

  Args:
    x: A map, in the dtype of the computation.
    kernel: Cast to `x.dtype`.
    bias: Added before the result is rounded.

  Returns:
    The map, in `x.dtype`.
  """
  return _dense_forward(x, kernel, bias)[0]


def _dense_forward(x, kernel, bias):
  narrow = kernel.astype(x.dtype)
  return _linear(x, narrow, bias), (x, narrow, kernel, bias)


def _dense_backward(residuals, dy):
  x, narrow, kernel, bias = residuals
  dy, dbias = bias_lib.summed(dy, bias)
  dx = jnp.dot(dy, narrow.T)
  tokens = (0, 1, 2)
  dkernel = jnp.tensordot(
      x, dy, (tokens, tokens), preferred_element_type=wide_dtype(x.dtype)
  )
  return dx, dkernel.astype(kernel.dtype), dbias


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dense_parts(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'],
    parts: int,
) -> list[Float[Array, 'b h w g']]:
  """`dense`, cut into parts of as many channels each."""
  return _parts_forward(x, kernel, bias, parts)[0]


def _parts_forward(x, kernel, bias, parts):
  narrow = kernel.astype(x.dtype)
  ys = []
  for each, own in zip(
      jnp.split(narrow, parts, axis=1), jnp.split(bias, parts), strict=True
  ):
    # A barrier: else XLA joins the products, two by two.
    mine, own = lax.optimization_barrier((x, own))
    ys.append(_linear(mine, each, own))
  return ys, (x, narrow, kernel, bias)


def _parts_backward(parts, residuals, dys):
  del parts
  return _dense_backward(residuals, jnp.concatenate(dys, axis=-1))


@jax.custom_vjp
def residual_dense(
    x: Float[Array, 'b h w c'],
    kernel: Float[Array, 'c f'],
    bias: Float[Array, ' f'],
    keep: Float[Array, ' b'] | None,
    residual: Float[Array, 'b h w f'],
) -> Float[Array, 'b h w f']:
  """A linear layer at the end of a residual branch, and the sum behind it.

      y = residual + keep (x W + b)

  Args:
    x: A map, in the dtype of the computation.
    kernel: As in `dense`.
    bias: As in `dense`.
    keep: Stochastic depth, a number for each image that has no gradient; None
      for 1.
    residual: What the branch is added to.

  Returns:
    The sum, in `x.dtype`; the branch is rounded to it before.
  """
  return _residual_forward(x, kernel, bias, keep, residual)[0]


def _residual_forward(x, kernel, bias, keep, residual):
  shape = residual.shape
  # As matrices, with a number for each token: XLA's Triton products end with
  # sums and factors of that form only.
  branch, residuals = _dense_forward(x, kernel, bias)
  branch = branch.reshape(-1, shape[-1])
  if keep is not None:
    keep = keep.astype(x.dtype)
    tokens = jnp.broadcast_to(keep[:, None, None], shape[:3])
    branch *= lax.optimization_barrier(tokens.reshape(-1, 1))
  residual = lax.optimization_barrier(residual)
  y = residual.reshape(branch.shape) + branch
  return lax.optimization_barrier(y.reshape(shape)), (*residuals, keep)


def _residual_backward(residuals, dy):
  *residuals, keep = residuals
  dbranch = dy
  if keep is not None:
    dbranch = dy * jnp.expand_dims(keep, (1, 2, 3))
  dkeep = None if keep is None else jnp.zeros_like(keep)
  return *_dense_backward(residuals, dbranch), dkeep, dy


def _linear(x, kernel, bias):
  wide = wide_dtype(x.dtype)
  y = jnp.dot(x, kernel, preferred_element_type=wide)
  # A barrier: XLA's Triton products end with what is an array by then, and else
  # in float32.
  bias = lax.optimization_barrier(bias.astype(wide))
  return (y + bias).astype(x.dtype)


dense.defvjp(_dense_forward, _dense_backward)
dense_parts.defvjp(_parts_forward, _parts_backward)
residual_dense.defvjp(_residual_forward, _residual_backward)
