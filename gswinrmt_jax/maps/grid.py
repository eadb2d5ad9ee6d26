"""Where the tokens of a stage lie on the image.

Stages are numbered from 1. Token `i` of stage k is taken for the pixels
`[s i, s (i + 1))` with `s = 2 ** (k + 1)`, so that the tokens tile the image;
the last row and column may reach beyond it.
"""

import jax
from jaxtyping import Array, Float


def stride(stage: int) -> int:
  """Returns the pixels from one token to the next."""
  return 2 ** (stage + 1)


def extents(size: tuple[int, int], stage: int) -> tuple[int, int]:
  """Returns rows and columns of the map for an image of (height, width)."""
  height, width = (-(-extent // stride(stage)) for extent in size)
  return height, width


def token(point: tuple[int, int], stage: int) -> tuple[int, int]:
  """Returns row and column of the token that holds the pixel (x, y)."""
  x, y = point
  return y // stride(stage), x // stride(stage)


def upsample(
    values: Float[Array, 'h w'], stage: int, size: tuple[int, int]
) -> Float[Array, '_ _']:
  """Enlarges a map to the image's (height, width), bilinearly.

  Each value stands at the middle of its token's pixels; outside of the outer
  middles the map goes on as it is there.
  """
  full = tuple(extent * stride(stage) for extent in values.shape)
  height, width = size
  return jax.image.resize(values, full, 'bilinear')[:height, :width]
