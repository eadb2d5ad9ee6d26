"""Geometric operations: one affine map per image, sampled bicubically."""

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from gswinrmt_jax.augment import pixels


def sources(
    *,
    height: int,
    width: int,
    degrees: Float32[Array, '*shape'],
    shear_x: Float32[Array, '*shape'],
    shear_y: Float32[Array, '*shape'],
    translate_x: Float32[Array, '*shape'],
    translate_y: Float32[Array, '*shape'],
) -> tuple[Float32[Array, '*shape h w'], Float32[Array, '*shape h w']]:
  """Returns the place in the input that each pixel of the output shows.

      x_in = cx + (x - cx) cos t - (y - cy) sin t + shear_x y + translate_x
      y_in = cy + (x - cx) sin t + (y - cy) cos t + shear_y x + translate_y

  with (cx, cy) the centre of the image; the middle of the first pixel is at
  (0.5, 0.5). A rotation by the angle t turns the image counter-clockwise about
  its centre, a shear leaves the upper left corner where it is. At most one of
  the five arguments of an image is meant to differ from 0.

  Args:
    height: Rows of the image.
    width: Columns of the image.
    degrees: Angle of the rotation, t.
    shear_x: Columns to read further right per row.
    shear_y: Rows to read further down per column.
    translate_x: Columns to read further right.
    translate_y: Rows to read further down.

  Returns:
    Columns and rows, x_in and y_in.
  """
  lead = (1,) * degrees.ndim
  x = jnp.arange(width, dtype=jnp.float32).reshape(*lead, 1, width) + 0.5
  y = jnp.arange(height, dtype=jnp.float32).reshape(*lead, height, 1) + 0.5
  degrees, shear_x, shear_y, translate_x, translate_y = (
      a[..., None, None]
      for a in (degrees, shear_x, shear_y, translate_x, translate_y)
  )
  cos, sin = jnp.cos(jnp.deg2rad(degrees)), jnp.sin(jnp.deg2rad(degrees))
  right, down = x - width / 2, y - height / 2
  x_in = width / 2 + right * cos - down * sin + shear_x * y + translate_x
  y_in = height / 2 + right * sin + down * cos + shear_y * x + translate_y
  return x_in, y_in


def resample(
    packed: Int32[Array, 'b h w'],
    x_in: Float32[Array, 'b h w'],
    y_in: Float32[Array, 'b h w'],
    fill: tuple[int, int, int],
) -> Int32[Array, 'b h w']:
  """Reads the image at the given places with Pillow's bicubic filter.

  Cubic convolution with a = -1, over the 4x4 pixels around a place, first along
  rows and then along columns, truncated to a grey level. Pixels beyond the
  border repeat it, but a place outside of the image takes `fill`.

  Args:
    packed: The images, packed.
    x_in: Columns to read at, see `sources`. To come with `y_in` from outside of
      a loop over operations makes it three times as fast on a CPU, where they
      would be computed anew for each of the sixteen pixels.
    y_in: Rows to read at.
    fill: Colour of what lies outside, 0 to 255.

  Returns:
    The resampled images, packed.
  """
  _, height, width = packed.shape
  inside = (x_in >= 0) & (x_in < width) & (y_in >= 0) & (y_in < height)

  left, top = jnp.floor(x_in - 0.5), jnp.floor(y_in - 0.5)
  right_by, down_by = x_in - 0.5 - left, y_in - 0.5 - top
  left, top = left.astype(jnp.int32), top.astype(jnp.int32)
  # The 4x4 pixels around each place, row by row, and of each the channels.
  rows = [jnp.clip(top + i, 0, height - 1) for i in range(-1, 3)]
  columns = [jnp.clip(left + j, 0, width - 1) for j in range(-1, 3)]
  taps = [
      [pixels.channels(pixels.take(packed, row, column)) for column in columns]
      for row in rows
  ]
  levels = []
  for channel, outside in enumerate(fill):
    lines = [
        _cubic(*(tap[channel].astype(jnp.float32) for tap in line), right_by)
        for line in taps
    ]
    level = jnp.clip(_cubic(*lines, down_by), 0.0, 255.0)
    levels.append(jnp.where(inside, level.astype(jnp.int32), outside))
  return pixels.join(*levels)


def _cubic(
    before: Float32[Array, 'b h w'],
    here: Float32[Array, 'b h w'],
    after: Float32[Array, 'b h w'],
    beyond: Float32[Array, 'b h w'],
    by: Float32[Array, 'b h w'],
) -> Float32[Array, 'b h w']:
  """Interpolates between `here` (by = 0) and `after` (by = 1).

  Horner's form, and no sum of four weights: four equal pixels then give their
  own level exactly, which truncation would otherwise darken.
  """
  linear = after - before
  square = 2 * (before - here) + after - beyond
  cube = here - before + beyond - after
  return here + by * (linear + by * (square + by * cube))
