"""Geometric operations: one affine map per image, sampled bicubically."""

import jax.numpy as jnp
from jaxtyping import Array
from jaxtyping import Float
from jaxtyping import Float32
from jaxtyping import UInt8

from gswinrmt_jax.augment import gather


def affine_matrix(
    *,
    height: int,
    width: int,
    degrees: Float32[Array, ' b'],
    shear_x: Float32[Array, ' b'],
    shear_y: Float32[Array, ' b'],
    translate_x: Float32[Array, ' b'],
    translate_y: Float32[Array, ' b'],
) -> Float32[Array, 'b 2 3']:
  """Maps places of the output to places of the input.

      x_in = x cos t + (shear_x - sin t) y + c
      y_in = (shear_y + sin t) x + y cos t + f

  with c and f such that a rotation by the angle t, counter-clockwise to the
  eye, leaves the centre of the image where it is. A shear leaves the upper left
  corner. At most one of the five arguments is meant to differ from 0.

  Args:
    height: Rows of the image.
    width: Columns of the image.
    degrees: Angle of the rotation.
    shear_x: Columns to read further right per row.
    shear_y: Rows to read further down per column.
    translate_x: Columns to read further right.
    translate_y: Rows to read further down.

  Returns:
    Rows (a, b, c) and (d, e, f) of `x_in = a x + b y + c`,
    `y_in = d x + e y + f`, where the middle of the first pixel is (0.5, 0.5).
  """
  angle = jnp.deg2rad(degrees)
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  x, y = width / 2, height / 2
  return jnp.stack(
      [
          jnp.stack(
              [cos, shear_x - sin, x - cos * x + sin * y + translate_x], axis=-1
          ),
          jnp.stack(
              [shear_y + sin, cos, y - sin * x - cos * y + translate_y], axis=-1
          ),
      ],
      axis=1,
  )


def resample(
    image: UInt8[Array, 'b h w 3'],
    matrix: Float32[Array, 'b 2 3'],
    fill: tuple[int, int, int],
) -> UInt8[Array, 'b h w 3']:
  """Reads the image at the mapped places with Pillow's bicubic filter.

  Cubic convolution with a = -1, over the 4x4 pixels around a place, first along
  rows and then along columns, truncated to a grey level. Pixels beyond the
  border repeat it, but a place outside of the image takes `fill`.

  Args:
    image: The images.
    matrix: The map of each image, see `affine_matrix`.
    fill: Colour of what the map brings in from outside, 0 to 255.

  Returns:
    The resampled images.
  """
  _, height, width, _ = image.shape
  # Middles of the output's pixels, and where they lie in the input: b h w.
  y = jnp.arange(height, dtype=jnp.float32)[None, :, None] + 0.5
  x = jnp.arange(width, dtype=jnp.float32)[None, None, :] + 0.5
  a, b, c, d, e, f = (
      matrix[:, i, j, None, None] for i in range(2) for j in range(3)
  )
  x_in = a * x + b * y + c
  y_in = d * x + e * y + f
  inside = (x_in >= 0) & (x_in < width) & (y_in >= 0) & (y_in < height)

  left, top = jnp.floor(x_in - 0.5), jnp.floor(y_in - 0.5)
  right_by, down_by = x_in - 0.5 - left, y_in - 0.5 - top
  # The 4x4 pixels around each place: b 4 4 h w, rows before columns.
  around = jnp.arange(-1, 3, dtype=jnp.int32)[None, :, None, None]
  row = jnp.clip(top.astype(jnp.int32)[:, None] + around, 0, height - 1)
  column = jnp.clip(left.astype(jnp.int32)[:, None] + around, 0, width - 1)
  taps = gather.take(gather.pack(image), row[:, :, None], column[:, None])

  def line(i):
    # Unpacked here, tap by tap: over all taps at once, the compiler for the CPU
    # repeats the gather for every use, which takes six times as long.
    levels = (gather.unpack(taps[:, i, j]) for j in range(4))
    return _cubic(*(a.astype(jnp.float32) for a in levels), right_by[..., None])

  out = _cubic(*(line(i) for i in range(4)), down_by[..., None])
  out = jnp.clip(out, 0.0, 255.0)
  outside = jnp.array(fill, jnp.float32)[None, None, None]
  return jnp.where(inside[..., None], out, outside).astype(jnp.uint8)


def _cubic(
    before: Float[Array, '...'],
    here: Float[Array, '...'],
    after: Float[Array, '...'],
    beyond: Float[Array, '...'],
    by: Float[Array, '...'],
) -> Float[Array, '...']:
  """Interpolates between `here` (by = 0) and `after` (by = 1).

  Horner's form, and no sum of four weights: four equal pixels then give their
  own level exactly, which truncation would otherwise darken.
  """
  linear = after - before
  square = 2 * (before - here) + after - beyond
  cube = here - before + beyond - after
  return here + by * (linear + by * (square + by * cube))
