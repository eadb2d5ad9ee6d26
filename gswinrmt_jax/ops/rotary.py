"""Rotary position embedding, in the two forms the family uses."""

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops.arrays import wide_dtype
from gswinrmt_jax.ops.backend import platform


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


def arranged(x: Float[Array, '*b c'], heads: int) -> Float[Array, '*b c']:
  """Reorders the channels of each head as `rotate_interleaved` has them.

  On a CPU 0, 2, 4, ... and then 1, 3, 5, ...: what is turned together lies half
  a head apart, as vector units want it. Done to the columns of the kernels of
  queries and keys alike, it changes no score. Elsewhere as they are: there it
  would be one more launch for each.

  Args:
    x: Kernel or bias.
    heads: How many heads the channels are of.
  """
  if platform() != 'cpu':
    return x
  pairs = x.reshape(*x.shape[:-1], heads, -1, 2)
  return pairs.swapaxes(-1, -2).reshape(x.shape)


def rotate_interleaved(
    x: Float[Array, 'b h w n d'], position: np.ndarray
) -> Float[Array, 'b h w n d']:
  """Turns channels (2m, 2m + 1) by `position * frequency_m` (eq. 4).

  Args:
    x: Queries or keys, their channels as `arranged` puts them.
    position: Integers that broadcast to `[h, w]`; RMT and the Retention form
      use `row * M_w + column` with `M_w` the effective window width.

  Returns:
    The rotated `x`, computed in float32 at least, in `x.dtype`.
  """
  frequencies = interleaved_frequencies(x.shape[-1])
  return _rotate(x, position, frequencies, -2 if platform() == 'cpu' else -1)


def rotate_split_half(
    x: Float[Array, 'b h w n d'], position: np.ndarray
) -> Float[Array, 'b h w n d']:
  """Turns channels (m, m + d / 2) by `position * frequency_m`.

  Args:
    x: Queries or keys.
    position: Integers that broadcast to `[h, w]`; the SWAT form uses the
      position along the axis of the pass.

  Returns:
    The rotated `x`, computed in float32 at least, in `x.dtype`.
  """
  return _rotate(x, position, split_half_frequencies(x.shape[-1]), -2)


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
  position = np.arange(x.shape[2 - axis])
  return rotate_split_half(x, np.expand_dims(position, axis))


def _rotate(
    x: Float[Array, 'b h w n d'],
    position: np.ndarray,
    frequencies: np.ndarray,
    axis: int,
) -> Float[Array, 'b h w n d']:
  """Turns pairs of channels, which lie along one of the last two axes.

      (x_0, x_1) -> (x_0 cos - x_1 sin, x_1 cos + x_0 sin)

  As a product with the pair exchanged, not put together from its halves: then
  XLA can compute it where it is read.

  Args:
    x: Queries or keys.
    position: As above.
    frequencies: Radians per position of each pair.
    axis: -1 if the channels of a pair are neighbours, -2 if half a head lies
      between them.
  """
  # On the host in float64: positions reach thousands, where float32 angles
  # lose four digits.
  angle = np.expand_dims(position[..., None, None] * frequencies, axis)
  signs = np.expand_dims(np.array([-1.0, 1.0]), -3 - axis)
  dtype = wide_dtype(x.dtype)
  cos = jnp.asarray(np.cos(angle)[None], dtype)
  sin = jnp.asarray((signs * np.sin(angle))[None], dtype)
  shape = [*x.shape[:-1], len(frequencies)]
  shape.insert(len(shape) + 1 + axis, 2)
  pairs = x.reshape(shape).astype(dtype)
  turned = pairs * cos + jnp.flip(pairs, axis) * sin
  # A barrier: else they are written in float32, once for each pass.
  return lax.optimization_barrier(turned.reshape(x.shape).astype(x.dtype))
