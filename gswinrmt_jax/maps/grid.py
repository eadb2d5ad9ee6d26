"""Where the tokens of a stage lie on the image.

Token `i` of a stage of stride `s` is taken for the pixels `[s i, s (i + 1))`,
so that the tokens tile the image; the last row and column may reach beyond it.
"""

import jax
from jaxtyping import Array, Float


def extents(size: tuple[int, int], stride: int) -> tuple[int, int]:
  """Returns rows and columns of the map for an image of (height, width)."""
  height, width = (-(-extent // stride) for extent in size)
  return height, width


def token(point: tuple[int, int], stride: int) -> tuple[int, int]:
  """Returns row and column of the token that holds the pixel (x, y)."""
  x, y = point
  return y // stride, x // stride


def upsample(
    values: Float[Array, 'h w'], stride: int, size: tuple[int, int]
) -> Float[Array, '_ _']:
  """Enlarges a map to the image's (height, width), bilinearly.

  Each value stands at the middle of its token's pixels; outside of the outer
  middles the map goes on as it is there.
  """
  full = tuple(extent * stride for extent in values.shape)
  height, width = size
  return jax.image.resize(values, full, 'bilinear')[:height, :width]
