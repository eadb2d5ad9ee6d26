"""Pixels as single integers: three bytes are read and chosen at once."""

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, UInt8


def pack(image: UInt8[Array, 'b h w 3']) -> Int32[Array, 'b h w']:
  """Puts the three bytes of a pixel into one integer: `r + 256 g + 65536 b`.

  A gather costs by the element, so packed images are read in a third of the
  time. Below 2^24, the integers are exact in float32 too.

  Args:
    image: The images.

  Returns:
    One integer below 2^24 per pixel.
  """
  red, green, blue = (image[..., c].astype(jnp.int32) for c in range(3))
  return join(red, green, blue)


def join(
    red: Int32[Array, '*shape'],
    green: Int32[Array, '*shape'],
    blue: Int32[Array, '*shape'],
) -> Int32[Array, '*shape']:
  """Packs levels that are given channel by channel."""
  return red | (green << 8) | (blue << 16)


def unpack(packed: Int32[Array, '*shape']) -> UInt8[Array, '*shape 3']:
  """Takes the bytes out again: the inverse of `pack`."""
  return jnp.stack(channels(packed), axis=-1).astype(jnp.uint8)


def channels(packed: Int32[Array, '*shape']) -> list[Int32[Array, '*shape']]:
  """Returns the red, green and blue levels of packed pixels."""
  return [packed & 255, (packed >> 8) & 255, packed >> 16]


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


def choose(
    weight: Float32[Array, 'b n'], *candidates: Int32[Array, 'b ...']
) -> Int32[Array, 'b ...']:
  """Takes from the candidates the one that an image's weights, one-hot, name.

  A product, and no `where`: compilers fuse a `where` with all that computes its
  branches into one loop over pixels, in which the gathers are repeated for each
  use and nothing is vectorised. On a CPU that took five times as long.

  Args:
    weight: One-hot rows.
    *candidates: One array for each column, of integers below 2^24.

  Returns:
    `candidates[i][b]` for the i with `weight[b, i] = 1`.
  """
  batch = weight.shape[0]
  flat = [a.reshape(batch, -1).astype(jnp.float32) for a in candidates]
  # The highest precision is float32's own, in which the product is exact.
  chosen = jnp.einsum(
      'bn,bnp->bp', weight, jnp.stack(flat, axis=1), precision='highest'
  )
  return chosen.astype(jnp.int32).reshape(candidates[0].shape)
