"""Rotary position embedding, in the two forms the family uses."""

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np


def interleaved_frequencies(head_dim: int) -> np.ndarray:
  """RMT's angles `10000 ** -linspace(0, 1, d / 2)`, end point included.

  Returns:
    float64 `[d / 2]`, radians per position, from 1 down to 1e-4.
  """
  return 10000.0 ** -np.linspace(0, 1, _pairs(head_dim))


def split_half_frequencies(head_dim: int) -> np.ndarray:
  """The usual angles `10000 ** (-2 j / d)` (Gated-SwinRMT, section 3.3).

  Returns:
    float64 `[d / 2]`, radians per position.
  """
  return 10000.0 ** (-np.arange(_pairs(head_dim)) * 2 / head_dim)


def _pairs(head_dim: int) -> int:
  if head_dim % 2:
    raise ValueError(
        f'Rotary embedding turns pairs of channels, but a head has {head_dim}.'
    )
  return head_dim // 2


def evens_first(x: Float[Array, '*b c'], heads: int) -> Float[Array, '*b c']:
  """Reorders the channels of each head: 0, 2, 4, ... and then 1, 3, 5, ...

  Done to the columns of the kernels of queries and keys alike, it changes no
  score, and the pairs (2m, 2m + 1) lie half a head apart, where `rotate` has
  them, and vector units.

  Args:
    x: Kernel or bias.
    heads: How many heads the channels are of.
  """
  pairs = x.reshape(*x.shape[:-1], heads, -1, 2)
  return pairs.swapaxes(-1, -2).reshape(x.shape)


def rotate(
    x: Float[Array, 'b h w n d'],
    position: np.ndarray,
    frequencies: np.ndarray,
) -> Float[Array, 'b h w n d']:
  """Turns channels (m, m + d / 2) by `position * frequency_m` (eq. 4).

      (x_0, x_1) -> (x_0 cos - x_1 sin, x_1 cos + x_0 sin)

  As a product with both halves exchanged, not put together from them: then XLA
  can compute it where it is read.

  Args:
    x: Queries or keys.
    position: Integers that broadcast to `[h, w]`. RMT and the Retention form
      use `row * M_w + column` with `M_w` the effective window width, the SWAT
      form the position along the axis of the pass.
    frequencies: Radians per position, `[d / 2]`.

  Returns:
    The rotated `x`, computed in float32 at least, in `x.dtype`.
  """
  # On the host in float64: positions reach thousands, where float32 angles
  # lose four digits.
  angle = position[..., None, None, None] * frequencies
  sign = np.array([-1.0, 1.0])[:, None]
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  cos = jnp.asarray(np.cos(angle)[None], dtype)
  sin = jnp.asarray((sign * np.sin(angle))[None], dtype)
  halves = x.reshape(*x.shape[:-1], 2, len(frequencies)).astype(dtype)
  turned = halves * cos + jnp.flip(halves, -2) * sin
  # A barrier: else they are written in float32, once for each pass.
  return lax.optimization_barrier(turned.reshape(x.shape).astype(x.dtype))


def rotate_along_axis(
    x: Float[Array, 'b h w n d'], axis: int
) -> Float[Array, 'b h w n d']:
  """Split-half rotation by the position along the axis of a pass.

  Args:
    x: Queries or keys.
    axis: 0 for the width pass, by column; 1 for the height pass, by row.

  Returns:
    The rotated `x`, in `x.dtype`.
  """
  extent = x.shape[2 - axis]
  position = np.arange(extent)
  frequencies = split_half_frequencies(x.shape[-1])
  return rotate(x, np.expand_dims(position, axis), frequencies)
