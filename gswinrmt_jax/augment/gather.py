"""Reading pixels of uint8 images at given places, one read for three bytes."""

import jax.numpy as jnp
from jaxtyping import Array
from jaxtyping import Int32
from jaxtyping import UInt8


def pack(image: UInt8[Array, 'b h w 3']) -> Int32[Array, 'b h w']:
  """Puts the three bytes of a pixel into one integer: `r + 256 g + 65536 b`.

  A gather costs by the element, so a packed image is read in a third of the
  time.

  Args:
    image: The images.

  Returns:
    One integer below 2^24 per pixel.
  """
  image = image.astype(jnp.int32)
  return image[..., 0] | (image[..., 1] << 8) | (image[..., 2] << 16)


def unpack(pixel: Int32[Array, '*shape']) -> Int32[Array, '*shape 3']:
  """Takes the bytes out again: the inverse of `pack`."""
  shift = jnp.array([0, 8, 16], jnp.int32)
  return (pixel[..., None] >> shift.reshape((1,) * pixel.ndim + (3,))) & 255


def take(
    packed: Int32[Array, 'b h w'],
    row: Int32[Array, 'b ...'],
    column: Int32[Array, 'b ...'],
) -> Int32[Array, 'b ...']:
  """Reads pixels: `out[b, ...] = packed[b, row[b, ...], column[b, ...]]`.

  The batch is a batching dimension of the gather, so a batch that is spread
  over devices is read where it lies.

  Args:
    packed: Images as `pack` returns them.
    row: Rows, within [0, h).
    column: Columns, within [0, w); broadcast against the rows.

  Returns:
    The pixels, still packed.
  """
  batch, height, width = packed.shape
  place = row * width + column
  pixel = jnp.take_along_axis(
      packed.reshape(batch, height * width),
      place.reshape(batch, -1),
      axis=1,
      mode='promise_in_bounds',
  )
  return pixel.reshape(place.shape)
