"""Rotary position embedding, in the two forms the family uses."""

from typing import NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops.arrays import wide_dtype
from gswinrmt_jax.ops.backend import platform
from gswinrmt_jax.ops.traced import traced_once


class Rotation(NamedTuple):
  """By how much queries and keys are turned: `position * frequency_m`.

  The position of a token is `column * strides[0] + row * strides[1]`. Scores
  depend on its difference alone, which along a row, or a column, is that of the
  columns, or rows: one rotation does for both passes.

  Attributes:
    frequencies: Radians per position of each pair, `d / 2` of them.
    strides: What a step along the width, and the height, counts.
    axis: -1 if the channels of a pair are neighbours, -2 if half a head lies
      between them.
  """

  frequencies: tuple[float, ...]
  strides: tuple[int, int]
  axis: int


class Turn(NamedTuple):
  """What turns the pairs of channels between two tokens of a line.

  Attributes:
    matrices: Rotations, float64, `[i, j, m, 2, 2]` or, if `axis` is -2, `[i, j,
      2, 2, m]`.
    axis: As that of the `Rotation`.
  """

  matrices: np.ndarray
  axis: int


def interleaved(head_dim: int, width: int) -> Rotation:
  """RMT's and the Retention form's: by `row * width + column` (eq. 4).

  Of channels (2m, 2m + 1), as `arranged` puts them.
  """
  axis = -2 if platform() == 'cpu' else -1
  return Rotation(tuple(interleaved_frequencies(head_dim)), (1, width), axis)


def split_half(head_dim: int) -> Rotation:
  """The SWAT form's: by the position along the axis of the pass.

  Of channels (m, m + d / 2).
  """
  return Rotation(tuple(split_half_frequencies(head_dim)), (1, 1), -2)


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
  """Reorders the channels of each head as `interleaved` has them.

  On a CPU 0, 2, 4, ... and then 1, 3, 5, ...: what is turned together lies half
  a head apart, as vector units want it. Done to the columns of the kernels of
  queries and keys alike, it changes no score. Elsewhere as they are: there it
  would be more launches.

  Args:
    x: Kernel or bias.
    heads: How many heads the channels are of.
  """
  return _evens_first(x, heads=heads) if platform() == 'cpu' else x


@traced_once('heads')
def _evens_first(x, *, heads):
  in_pairs = x.reshape(*x.shape[:-1], heads, -1, 2)
  return in_pairs.swapaxes(-1, -2).reshape(x.shape)


def pairs(x: Float[Array, '*b d'], axis: int) -> Float[Array, '*b p q']:
  """Returns the channels with those of a pair along an axis, -1 or -2."""
  shape = (-1, 2) if axis == -1 else (2, -1)
  return x.reshape(*x.shape[:-1], *shape)


@traced_once('rotation')
def rotate(
    x: Float[Array, 'b h w n d'], *, rotation: Rotation
) -> Float[Array, 'b h w n d']:
  """Turns the pairs of channels of each token.

      (x_0, x_1) -> (x_0 cos - x_1 sin, x_1 cos + x_0 sin)

  Args:
    x: Queries or keys.
    rotation: By how much.

  Returns:
    The rotated `x`, computed in float32 at least, in `x.dtype`.
  """
  _, height, width, _, _ = x.shape
  axis = rotation.axis
  dtype = wide_dtype(x.dtype)
  cos, sin = (
      jnp.asarray(table[None, :, :, None], dtype)
      for table in tables(rotation, height, width)
  )
  # As a product with the pair exchanged, not put together from its halves: then
  # XLA can compute it where it is read.
  both = pairs(x, axis).astype(dtype)
  turned = both * cos + jnp.flip(both, axis) * sin
  # A barrier: else they are written in float32, once for each pass.
  return lax.optimization_barrier(turned.reshape(x.shape).astype(x.dtype))


def tables(
    rotation: Rotation, height: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns what `rotate` multiplies pairs, and exchanged pairs, with.

  Args:
    rotation: By how much.
    height: Of the map.
    width: Of the map.

  Returns:
    Cosines `[h, w, m, 1]`, and sines, negative for the first channel of each
    pair, `[h, w, m, 2]`; if the axis is -2, `[h, w, 1, m]` and `[h, w, 2, m]`.
  """
  across, down = rotation.strides
  position = np.arange(height)[:, None] * down + np.arange(width) * across
  # On the host in float64: positions reach thousands, where float32 angles
  # lose four digits.
  angle = position[..., None] * np.asarray(rotation.frequencies)
  angle = np.expand_dims(angle, rotation.axis)
  signs = np.expand_dims(np.array([-1.0, 1.0]), -3 - rotation.axis)
  return np.cos(angle), signs * np.sin(angle)


def between(rotation: Rotation, axis: int, length: int) -> Turn:
  """Returns what turns the tokens of a line against each other.

      R = (cos a, sin a; -sin a, cos a),  a = (i - j) strides[axis] frequency_m

  so that `q R k^T` is the product of rotated query and key.

  Args:
    rotation: What turns each of them.
    axis: 0 for a row, 1 for a column.
    length: Tokens of the line.
  """
  position = np.arange(length) * rotation.strides[axis]
  angle = (position[:, None] - position)[..., None] * rotation.frequencies
  cos, sin = np.cos(angle), np.sin(angle)
  matrices = np.array([[cos, sin], [-sin, cos]])
  order = (2, 3, 4, 0, 1) if rotation.axis == -1 else (2, 3, 0, 1, 4)
  return Turn(matrices.transpose(order), rotation.axis)
