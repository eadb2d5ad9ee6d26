"""Rotary position embedding, in the two forms the family uses."""

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


def rotate_interleaved(
    x: Float[Array, 'b h w n d'], position: np.ndarray
) -> Float[Array, 'b h w n d']:
  """Turns channels (2m, 2m + 1) by `position * frequency_m` (eq. 4).

  Args:
    x: Queries or keys.
    position: Integers that broadcast to `[h, w]`; RMT and the Retention form
      use `row * M_w + column` with `M_w` the effective window width.

  Returns:
    The rotated `x`, computed in float32 at least, in `x.dtype`.
  """
  cos, sin = _tables(position, interleaved_frequencies(x.shape[-1]), x)
  even, odd = x[..., 0::2].astype(cos.dtype), x[..., 1::2].astype(cos.dtype)
  turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
  return turned.reshape(x.shape).astype(x.dtype)


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
  cos, sin = _tables(position, split_half_frequencies(x.shape[-1]), x)
  low, high = jnp.split(x.astype(cos.dtype), 2, axis=-1)
  turned = [low * cos - high * sin, low * sin + high * cos]
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)


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
  return rotate_split_half(x, np.expand_dims(position, axis))


def _tables(
    position: np.ndarray, frequencies: np.ndarray, x: Array
) -> tuple[Array, Array]:
  """Cosines and sines `[1, h, w, 1, d / 2]`, from float64 on the host.

  Positions reach thousands, where float32 angles lose four digits.
  """
  angle = position[..., None, None] * frequencies
  dtype = jnp.promote_types(x.dtype, jnp.float32)
  return (
      jnp.asarray(np.cos(angle)[None], dtype),
      jnp.asarray(np.sin(angle)[None], dtype),
  )
