"""Images of several sizes in one batch: the valid part of padded maps.

`extents [b, 2]` are the valid rows and columns of each map. The rest, on the
right and at the bottom, is padding and may contain any finite number. None
means that everything is valid, and costs nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
import numpy as np

Extents = Int[Array, 'b 2'] | None


def check(extents: Extents, shape: tuple[Any, ...]) -> None:
  """Checks extents of images; values only if not traced.

  Args:
    extents: The extents.
    shape: `(b, h, w, c)`; the batch may be symbolic, as in an export.

  Raises:
    ValueError: If they are no array `[b, 2]` of signed integers from 1 to the
      image's height and width.
  """
  if extents is None:
    return
  batch, height, width, _ = shape
  # `strided` negates. Lists are refused, as they lack arithmetic.
  dtype = getattr(extents, 'dtype', np.dtype(object))
  signed = jnp.issubdtype(dtype, jnp.signedinteger)
  if np.shape(extents) != (batch, 2) or not signed:
    raise ValueError(
        f'extents must be an array [{batch}, 2] of signed integers, a height '
        f'and a width of each image, not {list(np.shape(extents))} {dtype}.'
    )
  if isinstance(extents, jax.core.Tracer):
    return
  values = np.asarray(extents)
  if (values < 1).any() or (values > (height, width)).any():
    raise ValueError(
        f'extents must be between 1 and the image, {height}x{width}, not '
        f'{values.tolist()}.'
    )


def strided(extents: Extents, stride: int) -> Extents:
  """Returns the extents after a stride, `ceil(extent / stride)`."""
  return None if extents is None else -(-extents // stride)


def valid(
    extents: Int[Array, 'b 2'], height: int, width: int
) -> Bool[Array, 'b h w']:
  """Returns which positions of the maps are valid."""
  rows = jnp.arange(height)[None, :, None] < extents[:, :1, None]
  columns = jnp.arange(width)[None, None] < extents[:, 1:, None]
  return rows & columns


def fill(
    x: Float[Array, 'b h w c'], extents: Extents, value: float = 0.0
) -> Float[Array, 'b h w c']:
  """Sets the padding to `value`, by default the zeros a convolution needs."""
  if extents is None:
    return x
  return jnp.where(valid(extents, *x.shape[1:3])[..., None], x, value)


def mean(
    x: Float[Array, 'b h w c'], extents: Extents, axes: tuple[int, ...]
) -> Float[Array, '*b c']:
  """Returns the mean over valid positions.

  Over the axes (1, 2), it is that of each map; over (0, 1, 2), of the batch.
  """
  if extents is None:
    return x.mean(axes)
  area = extents.prod(1)
  number = area.sum() if 0 in axes else area[:, None]
  return fill(x, extents).sum(axes) / number


def count(x: Float[Array, 'b h w c'], extents: Extents) -> int | Array:
  """Returns the number of valid positions in the batch."""
  return x.size // x.shape[-1] if extents is None else extents.prod(1).sum()
