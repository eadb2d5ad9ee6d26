"""Random crop of the zero-padded image, and random horizontal flip."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, PRNGKeyArray, UInt8

from gswinrmt_jax.augment import draws, image_ops


def crop_and_flip(
    key: PRNGKeyArray,
    image: UInt8[Array, 'b h w 3'],
    *,
    padding: int,
    flip: bool,
) -> tuple[UInt8[Array, 'b h w 3'], Bool[Array, ' b']]:
  """Pads with zeros, crops back to the old size and flips, at random.

  Args:
    key: Source of the draws; each image has its own.
    image: The images.
    padding: Rows and columns of zeros on each side; all (2 padding + 1)^2
      windows are equally likely. 0 for no crop.
    flip: Whether an image is flipped left to right with probability 1/2.

  Returns:
    Images of the same size, and which of them are flipped.
  """
  batch = image.shape[0]
  if not padding and not flip:
    return image, jnp.zeros(batch, bool)
  vertical, horizontal, coin = jax.random.uniform(
      key, (3, batch), dtype=jnp.float32
  )
  down = draws.integer(vertical, 2 * padding + 1) - padding
  right = draws.integer(horizontal, 2 * padding + 1) - padding
  flipped = (coin < 0.5) & flip
  return shift_and_flip(image, down, right, flipped), flipped


def shift_and_flip(
    image: UInt8[Array, 'b h w 3'],
    down: Int32[Array, ' b'],
    right: Int32[Array, ' b'],
    flipped: Bool[Array, ' b'],
) -> UInt8[Array, 'b h w 3']:
  """Cuts a window of the image's size that starts at (down, right), then flips.

      out[y, x] = image[y + down, x' + right],  x' = w - 1 - x where flipped

  and 0 outside the image: no padded copy is made.

  Args:
    image: The images.
    down: First row of the window; negative above the image.
    right: First column of the window; negative left of the image.
    flipped: Whether the window is flipped left to right after the cut.

  Returns:
    The windows.
  """
  _, height, width, _ = image.shape
  column = jnp.arange(width, dtype=jnp.int32)[None]
  column = jnp.where(flipped[:, None], width - 1 - column, column)
  column = (column + right[:, None])[:, None, :]
  row = (jnp.arange(height, dtype=jnp.int32)[None] + down[:, None])[:, :, None]
  window = image_ops.resample_nearest(
      image_ops.pack(image), column, row, fill=(0, 0, 0)
  )
  return image_ops.unpack(window)
