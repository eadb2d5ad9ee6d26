"""LayerNorm over channels, with backward passes written by hand."""

import functools

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import along_channels, token_sums, wide
from gswinrmt_jax.ops.traced import traced_once

EPSILON = 1e-6  # of every norm of the models but one


@traced_once()
def normalize(x: Float[Array, '*b c']) -> Float[Array, '*b c']:
  r"""LayerNorm without scale and bias.

      y = (x - mean_c x) / sigma,    sigma = sqrt(var_c x + 1e-6)

  The backward pass keeps `y`, which the next linear layer keeps anyway, and
  `sigma`:

      dx = (dy - mean_c dy - y mean_c(dy y)) / sigma

  Args:
    x: Tokens.

  Returns:
    The normalised tokens, computed in float32 at least, in `x.dtype`.
  """
  return _normalize(x)


@jax.custom_vjp
def _normalize(x):
  return _normalize_forward(x)[0]


def _normalize_forward(x):
  # In two passes: `E[x^2] - E[x]^2` is 0 for a token whose mean is large beside
  # its deviation.
  centred = wide(x) - wide(x).mean(-1, keepdims=True)
  variance = jnp.square(centred).mean(-1, keepdims=True)
  inverse = lax.rsqrt(variance + EPSILON)
  y = (centred * inverse).astype(x.dtype)
  return y, (y, inverse)


def _normalize_backward(residuals, dy):
  y, inverse = residuals
  return (_gradient(wide(y), inverse, wide(dy)).astype(y.dtype),)


@traced_once('epsilon')
def layer_norm(
    x: Float[Array, '*b c'],
    scale: Float[Array, ' c'],
    bias: Float[Array, ' c'],
    *,
    epsilon: float = EPSILON,
) -> Float[Array, '*b c']:
  """LayerNorm, `normalize(x) * scale + bias`, with any epsilon.

  The backward pass keeps `x`, its mean and its deviation.

  Args:
    x: Tokens.
    scale: Of the normalised channels.
    bias: Added to them.
    epsilon: Added to the variance.

  Returns:
    The normalised tokens, computed in float32 at least, in `x.dtype`.
  """
  return _layer_norm(x, scale, bias, epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x, scale, bias, epsilon):
  return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(x, scale, bias, epsilon):
  # A barrier: else they are computed again by whoever needs them, and the
  # sums over tokens read a map written in float32.
  mean, inverse = lax.optimization_barrier(_statistics(x, epsilon))
  y = (wide(x) - mean) * inverse * along_channels(scale, x) + along_channels(
      bias, x
  )
  return y.astype(x.dtype), (x, mean, inverse, scale, bias)


def _layer_norm_backward(epsilon, residuals, dy):
  del epsilon  # It is in the deviation.
  x, mean, inverse, scale, bias = residuals
  normalized = (wide(x) - mean) * inverse
  dy = wide(dy)
  dx = _gradient(normalized, inverse, dy * along_channels(scale, x))
  dscale, dbias = token_sums(dy * normalized, dy)
  return (
      # A barrier: else it is written in float32.
      lax.optimization_barrier(dx.astype(x.dtype)),
      dscale.astype(scale.dtype),
      dbias.astype(bias.dtype),
  )


def _statistics(x, epsilon):
  r"""Returns mean and `1 / sigma` of each token, float32 at least.

  In one pass, with a channel of the token taken off before:

      s = x - x_0    mean = x_0 + mean_c s    var = mean_c s^2 - (mean_c s)^2

  No more digits are lost to the difference than `(x_0 - mean)^2 / var` has,
  and that is below the number of channels however large the mean.
  """
  first = wide(x[..., :1])
  shifted = wide(x) - first
  mean = shifted.mean(-1, keepdims=True)
  variance = jnp.square(shifted).mean(-1, keepdims=True) - jnp.square(mean)
  return first + mean, lax.rsqrt(variance + epsilon)


def _gradient(y, inverse, dy):
  """The gradient through the normalisation that gave `y`."""
  along = (dy * y).mean(-1, keepdims=True)
  return inverse * (dy - dy.mean(-1, keepdims=True) - y * along)


_normalize.defvjp(_normalize_forward, _normalize_backward)
_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)
