"""Images of several sizes in one batch: what of a padded map is valid.

`extents [b, 2]` are the valid rows and columns of each map. What lies beyond
them, on the right and below, is padding and may hold any finite number. None
says that all is valid, and costs nothing.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Extents = Int[Array, 'b 2'] | None


def strided(extents: Extents, stride: int) -> Extents:
  """Extents after a stride: `ceil(extent / stride)`."""
  return None if extents is None else -(-extents // stride)


def valid(
    extents: Int[Array, 'b 2'], height: int, width: int
) -> Bool[Array, 'b h w']:
  """Which positions of the maps are valid."""
  rows = jnp.arange(height)[None, :, None] < extents[:, :1, None]
  columns = jnp.arange(width)[None, None] < extents[:, 1:, None]
  return rows & columns


def fill(
    x: Float[Array, 'b h w c'], extents: Extents, value: float = 0.0
) -> Float[Array, 'b h w c']:
  """Sets the padding to `value`: a convolution reads zeros beyond a map."""
  if extents is None:
    return x
  return jnp.where(valid(extents, *x.shape[1:3])[..., None], x, value)


def mean(x: Float[Array, 'b h w c'], extents: Extents) -> Float[Array, 'b c']:
  """Mean of each map over its valid positions."""
  if extents is None:
    return x.mean((1, 2))
  return fill(x, extents).sum((1, 2)) / extents.prod(1)[:, None]


def count(x: Float[Array, 'b h w c'], extents: Extents) -> int | Array:
  """Number of valid positions in the batch."""
  return x.size // x.shape[-1] if extents is None else extents.prod(1).sum()
