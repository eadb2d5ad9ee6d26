r"""The middle of RMT's FFN: GELU, depthwise convolution, LayerNorm, residual.

    h = GELU(z)    c = h * w + b    s = h + (c - mean_f c) / sigma scale + bias

The widest maps of the model, for which XLA takes a pass each: behind GELU three
forward, reading and writing six maps, and four backward with eleven. Here one
with three, which goes over the channels of its tokens twice, first for `c` and
its statistics, then for `s`, with `c` still in a cache; and two with six:
first, with `g = ds scale` and `n = (c - mean_f c) / sigma`,

    m = mean_f g      k = mean_f (g n)
    dscale = sum_t ds n      dbias = sum_t ds

then what needs these at all neighbours of a token,

    dc = (g - m - n k) / sigma      db = sum_t dc
    dh[t] = ds[t] + sum_o dc[t - o] w[o]      dw[o] = sum_t h[t] dc[t - o]
    dz = dh GELU'(z)

with the offsets `o` of the convolution's taps.
"""

import jax
from jax import lax
from jaxtyping import Array, Float

from gswinrmt_jax.ops.arrays import wide
from gswinrmt_jax.ops.gelu import value as gelu_value
from gswinrmt_jax.ops.traced import traced_once
from gswinrmt_jax.pallas import ffn_kernels
from gswinrmt_jax.pallas.taps import Taps


@traced_once()
def gelu_conv_norm(
    z: Float[Array, 'b h w f'],
    kernel: Float[Array, 'k k 1 f'],
    conv_bias: Float[Array, ' f'],
    scale: Float[Array, ' f'],
    bias: Float[Array, ' f'],
) -> Float[Array, 'b h w f']:
  """Returns `h + LN(DWConv(h))` of `h = GELU(z)`.

  The backward pass keeps `z` and what the convolution gave.

  Args:
    z: What the first linear layer of the FFN gives.
    kernel: Of the depthwise convolution, padded with zeros to the same size.
    conv_bias: Added behind it.
    scale: Of the LayerNorm.
    bias: Of the LayerNorm.

  Returns:
    The sum, computed in float32 at least, in `z.dtype`.
  """
  return _branch(z, kernel, conv_bias, scale, bias)


@jax.custom_vjp
def _branch(z, kernel, conv_bias, scale, bias):
  return _forward(z, kernel, conv_bias, scale, bias)[0]


def _forward(z, kernel, conv_bias, scale, bias):
  matrix = z.reshape(-1, z.shape[-1])
  hidden = gelu_value(wide(matrix)).astype(z.dtype)
  convolved, out, mean, inverse = ffn_kernels.convolve_and_add(
      lax.optimization_barrier(hidden),  # else it is written in float32
      wide(kernel).reshape(-1),
      *map(wide, (conv_bias, scale, bias)),
      _taps(z, kernel),
  )
  parameters = kernel, conv_bias, scale, bias
  return out.reshape(z.shape), (z, convolved, mean, inverse, parameters)


def _backward(residuals, ds):
  z, convolved, mean, inverse, parameters = residuals
  kernel, _, scale, _ = parameters
  matrix = z.reshape(convolved.shape)
  given = ds.reshape(matrix.shape), convolved, mean, inverse, wide(scale)
  m, k, dscale, dbias = ffn_kernels.norm_sums(*given)
  dz, dkernel, dconv_bias = ffn_kernels.gradients(
      *given, m, k, matrix, wide(kernel).reshape(-1), _taps(z, kernel)
  )
  gradients = dkernel.reshape(kernel.shape), dconv_bias, dscale, dbias
  return dz.reshape(z.shape), *(
      gradient.astype(parameter.dtype)
      for gradient, parameter in zip(gradients, parameters, strict=True)
  )


def _taps(z, kernel):
  _, height, width, _ = z.shape
  return Taps(height, width, kernel.shape[0])


_branch.defvjp(_forward, _backward)
