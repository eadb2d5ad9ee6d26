"""Colour operations: blends of the image with a degenerate one, as in Pillow.

    out = degenerate + factor (image - degenerate)

A factor of 0 gives the degenerate image, 1 the image, more exaggerates it. The
degenerate image is grey for colour, one grey level for contrast, black for
brightness and smoothed for sharpness.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, UInt8

Levels = Int32[Array, 'b h w 3']


def luma(image: UInt8[Array, 'b h w 3']) -> Int32[Array, 'b h w 1']:
  """Luma 0.299 R + 0.587 G + 0.114 B, rounded, in 16-bit fixed point."""
  red, green, blue = jnp.split(image.astype(jnp.int32), 3, axis=-1)
  return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def mean_luma(image: UInt8[Array, 'b h w 3']) -> Int32[Array, 'b 1 1 1']:
  """Mean of the luma over the image, rounded half up."""
  pixels = image.shape[1] * image.shape[2]
  total = luma(image).sum(axis=(1, 2), keepdims=True, dtype=jnp.int32)
  return (2 * total + pixels) // (2 * pixels)


def smooth(image: UInt8[Array, 'b h w 3']) -> Levels:
  """Blurs with the 3x3 kernel of ones and a 5 in the middle, over 13.

  Pixels of the border are left as they are. `(2 s + 13) // 26` rounds s / 13 to
  the nearest; 13 is odd, so there are no ties.

  Args:
    image: The images.

  Returns:
    Levels of the smoothed images.
  """
  _, height, width, _ = image.shape
  level = image.astype(jnp.int32)
  padded = jnp.pad(level, ((0, 0), (1, 1), (1, 1), (0, 0)))
  rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
  total = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * level
  y = jnp.arange(height)[None, :, None, None]
  x = jnp.arange(width)[None, None, :, None]
  inner = (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
  return jnp.where(inner, (2 * total + 13) // 26, level)


def blend(
    degenerate: Levels,
    image: UInt8[Array, 'b h w 3'],
    factor: Float32[Array, ' b'],
) -> UInt8[Array, 'b h w 3']:
  """Returns `degenerate + factor (image - degenerate)`, clipped and truncated.

  The product and the sum are rounded to float32 each, as in Pillow. Compilers
  like to contract the two into one rounding, which gives another integer now
  and then (18 - 1.7 * 10 is 1 with two roundings, 0.9999995 with one). The
  clip between them never acts and prevents that.

  Args:
    degenerate: Levels of the image at factor 0.
    image: The image at factor 1.
    factor: Weight of the image, at most 4; it may exceed 1.

  Returns:
    The blended images.
  """
  difference = (image.astype(jnp.int32) - degenerate).astype(jnp.float32)
  product = jnp.clip(factor[:, None, None, None] * difference, -1024.0, 1024.0)
  out = degenerate.astype(jnp.float32) + product
  return jnp.clip(out, 0.0, 255.0).astype(jnp.uint8)
