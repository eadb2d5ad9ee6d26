"""Pillow's operations on batches of uint8 images, exact to the grey level.

There are three kinds: lookup tables of grey levels, blends with a degenerate
image, and resampling. Where pixels are gathered or selected, each is packed
into one integer. The cost of a gather is per element, so packing cuts the time
on a CPU to a third.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, UInt8
import numpy as np

Levels = Int32[Array, 'b h w 3']
Table = Int32[Array, 'b 256 c']  # image, old grey level, channel

# --- Packed pixels ---


def pack(image: UInt8[Array, 'b h w 3']) -> Int32[Array, 'b h w']:
  """Packs RGB into `r + 256 g + 65536 b`, which float32 represents exactly."""
  return _join(*(image[..., c].astype(jnp.int32) for c in range(3)))


def unpack(packed: Int32[Array, '*shape']) -> UInt8[Array, '*shape 3']:
  """Returns the RGB channels: the inverse of `pack`."""
  return jnp.stack(_channels(packed), axis=-1).astype(jnp.uint8)


def take(
    packed: Int32[Array, 'b h w'],
    row: Int32[Array, 'b ...'],
    column: Int32[Array, 'b ...'],
) -> Int32[Array, 'b ...']:
  """Reads pixels: `out[b, ...] = packed[b, row[b, ...], column[b, ...]]`.

  Rows and columns broadcast; none may lie outside the image. The batch axis is
  a batching dimension of the gather, so a batch sharded over devices is read
  without communication.
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
    one_hot: Float32[Array, 'b n'], *candidates: Int32[Array, 'b ...']
) -> Int32[Array, 'b ...']:
  """Selects one of the candidates for each image.

  This is a matmul rather than a `where`. XLA fuses a `where` with the
  computation of its branches into one loop over pixels, which repeats the
  gathers for each use and is not vectorised: five times as slow on a CPU.

  Args:
    one_hot: Selects `candidates[i][b]` by `one_hot[b, i] = 1`; a row of zeros
      gives 0.
    *candidates: One array per column of `one_hot`, of integers below 2^24.
  """
  batch = one_hot.shape[0]
  flat = [a.reshape(batch, -1).astype(jnp.float32) for a in candidates]
  # 'highest' is full float32, in which the product is exact.
  chosen = jnp.einsum(
      'bn,bnp->bp', one_hot, jnp.stack(flat, axis=1), precision='highest'
  )
  return chosen.astype(jnp.int32).reshape(candidates[0].shape)


def _join(red, green, blue):
  return red | (green << 8) | (blue << 16)


def _channels(packed):
  return packed & 255, (packed >> 8) & 255, packed >> 16


# --- Tables of grey levels ---


def histogram(image: UInt8[Array, 'b h w c']) -> Table:
  """Counts the pixels of every grey level, per image and channel."""
  batch, height, width, channels = image.shape
  level = image.reshape(batch, height * width, channels).astype(jnp.int32)

  def count(level):
    zeros = jnp.zeros(256, jnp.int32)
    return zeros.at[level].add(1, mode='promise_in_bounds')

  count = jax.vmap(count, in_axes=1, out_axes=1)  # over channels
  return jax.vmap(count)(level)


def apply_table(
    packed: Int32[Array, 'b h w'], table: Int32[Array, 'b 256 3']
) -> Int32[Array, 'b h w']:
  """Looks up every level: `out[b, y, x, c] = table[b, level, c]`."""
  batch = packed.shape[0]
  entries = table.reshape(batch, 256 * 3)
  levels = []
  for channel, level in enumerate(_channels(packed)):
    place = (level * 3 + channel).reshape(batch, -1)
    new = jnp.take_along_axis(entries, place, axis=1, mode='promise_in_bounds')
    levels.append(new.reshape(packed.shape))
  return _join(*levels)


def autocontrast_table(counts: Table) -> Table:
  """Returns the table that stretches the levels that occur to 0..255.

      table[v] = floor(255 (v - lo) / (hi - lo)) - error[lo, hi, v]

  with lo and hi the lowest and highest level. Pillow computes
  `int(v * scale - lo * scale)` in float64. Where the quotient is an integer,
  rounding may leave the result slightly below it, and `int` then drops a whole
  level: `error` is 1 there and 0 elsewhere.

  The table is the identity for a channel with a single grey level. Entries for
  levels that do not occur are arbitrary.
  """
  level = _levels()
  present = counts > 0
  low = jnp.argmax(present, axis=1, keepdims=True).astype(jnp.int32)
  high = 255 - jnp.argmax(present[:, ::-1], axis=1, keepdims=True)
  high = high.astype(jnp.int32)
  errors = jnp.asarray(_autocontrast_errors())
  bits = errors.at[low, high, level >> 3].get(mode='promise_in_bounds')
  error = (bits.astype(jnp.int32) >> (level & 7)) & 1
  stretched = (level - low) * 255 // jnp.maximum(high - low, 1) - error
  return jnp.where(high > low, jnp.clip(stretched, 0, 255), level)


@functools.cache
def _autocontrast_errors() -> np.ndarray:
  """Returns `error[lo, hi, v]`, eight levels v in a byte, 2 MB in all."""
  level = np.arange(256)
  errors = np.zeros((256, 256, 32), np.uint8)
  for low in range(255):
    span = np.arange(1, 256 - low)[:, None]
    scale = 255.0 / span
    below = level * scale + -low * scale < (level - low) * 255 // span
    errors[low, low + 1 :] = np.packbits(below, axis=1, bitorder='little')
  return errors


def equalize_table(counts: Table) -> Table:
  """Returns the table that spreads the pixels evenly over the grey levels.

      table[v] = (step // 2 + number of pixels darker than v) // step

  with `step` the number of pixels below the brightest level, divided by 255 and
  rounded down. The table is the identity where `step` is 0.
  """
  level = _levels()
  total = counts.sum(axis=1, keepdims=True, dtype=jnp.int32)
  brightest = jnp.where(counts > 0, level, 0).max(axis=1, keepdims=True)
  last = jnp.take_along_axis(counts, brightest, axis=1)
  step = (total - last) // 255
  darker = jnp.cumsum(counts, axis=1, dtype=jnp.int32) - counts
  divisor = jnp.maximum(step, 1)
  spread = jnp.minimum((step // 2 + darker) // divisor, 255)
  return jnp.where(step > 0, spread, level)


def invert_table() -> Int32[Array, '1 256 1']:
  """Returns the table of the negative, `255 - v`."""
  return 255 - _levels()


def posterize_table(bits: Int32[Array, ' b']) -> Int32[Array, 'b 256 1']:
  """Keeps the `bits` highest bits of a level, 0 (all black) to 8."""
  drop = (8 - bits)[:, None, None]
  return (_levels() >> drop) << drop


def solarize_table(threshold: Int32[Array, ' b']) -> Int32[Array, 'b 256 1']:
  """Inverts levels of at least `threshold`; 256 changes nothing."""
  level = _levels()
  return jnp.where(level < threshold[:, None, None], level, 255 - level)


def solarize_add_table(addend: Int32[Array, ' b']) -> Int32[Array, 'b 256 1']:
  """Adds `addend` to levels below 128; clips at 255."""
  level = _levels()
  brighter = jnp.minimum(level + addend[:, None, None], 255)
  return jnp.where(level < 128, brighter, level)


def _levels() -> Int32[Array, '1 256 1']:
  return jnp.arange(256, dtype=jnp.int32)[None, :, None]


# --- Blends ---


def luma(image: UInt8[Array, 'b h w 3']) -> Int32[Array, 'b h w 1']:
  """Computes 0.299 R + 0.587 G + 0.114 B in 16-bit fixed point, rounded."""
  red, green, blue = jnp.split(image.astype(jnp.int32), 3, axis=-1)
  return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


def mean_luma(image: UInt8[Array, 'b h w 3']) -> Int32[Array, 'b 1 1 1']:
  """Returns the mean luma of at most 8.4 million pixels, rounded half up."""
  pixels = image.shape[1] * image.shape[2]
  total = luma(image).sum(axis=(1, 2), keepdims=True, dtype=jnp.int32)
  whole, rest = jnp.divmod(total, pixels)  # 2 * total may exceed int32.
  return whole + (2 * rest + pixels) // (2 * pixels)


def smooth(image: UInt8[Array, 'b h w 3']) -> Levels:
  """Blurs with a 3x3 kernel: 5/13 at the centre, 1/13 elsewhere.

  Border pixels stay unchanged. `(2 s + 13) // 26` rounds s / 13 to the nearest
  integer; 13 is odd, so there are no ties.
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

  Pillow rounds both the product and the sum to float32. Compilers contract them
  to a fused multiply-add, which rounds once and changes some integers
  (18 - 1.7 * 10 is 1 with two roundings, 0.9999995 with one). The clip of the
  product never takes effect, for factors up to 4, but prevents the contraction.
  """
  difference = (image.astype(jnp.int32) - degenerate).astype(jnp.float32)
  product = jnp.clip(factor[:, None, None, None] * difference, -1024.0, 1024.0)
  out = degenerate.astype(jnp.float32) + product
  return jnp.clip(out, 0.0, 255.0).astype(jnp.uint8)


# --- Resampling ---


def resample_bicubic(
    packed: Int32[Array, 'b h w'],
    x_in: Float32[Array, 'b h w'],
    y_in: Float32[Array, 'b h w'],
    fill: tuple[int, int, int],
) -> Int32[Array, 'b h w']:
  """Samples the image at the given positions with Pillow's bicubic filter.

  This is a cubic convolution with a = -1 over the surrounding 4x4 pixels, first
  along rows, then along columns, truncated to a grey level. The filter repeats
  border pixels, but positions outside the image take `fill`.

  Args:
    packed: Packed images.
    x_in: x coordinates; the centre of the first pixel is at 0.5. Compute them
      before a loop over operations. Inside the loop, a CPU recomputes them for
      each of the sixteen pixels: three times as slow.
    y_in: y coordinates, likewise.
    fill: Colour outside the image, 0 to 255.
  """
  _, height, width = packed.shape
  inside = (x_in >= 0) & (x_in < width) & (y_in >= 0) & (y_in < height)
  left, top = jnp.floor(x_in - 0.5), jnp.floor(y_in - 0.5)
  across, down = x_in - 0.5 - left, y_in - 0.5 - top
  left, top = left.astype(jnp.int32), top.astype(jnp.int32)
  rows = [jnp.clip(top + i, 0, height - 1) for i in range(-1, 3)]
  columns = [jnp.clip(left + j, 0, width - 1) for j in range(-1, 3)]
  pixels = [
      [_channels(take(packed, row, column)) for column in columns]
      for row in rows
  ]
  levels = []
  for channel, outside in enumerate(fill):
    by_row = [
        _cubic(*(p[channel].astype(jnp.float32) for p in row), across)
        for row in pixels
    ]
    level = jnp.clip(_cubic(*by_row, down), 0.0, 255.0)
    levels.append(jnp.where(inside, level.astype(jnp.int32), outside))
  return _join(*levels)


def resample_nearest(
    packed: Int32[Array, 'b h w'],
    column: Int32[Array, 'b ...'],
    row: Int32[Array, 'b ...'],
) -> Int32[Array, 'b h w']:
  """Reads whole pixels; positions outside the image are black.

  Columns and rows broadcast.
  """
  _, height, width = packed.shape
  inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
  pixel = take(
      packed, jnp.clip(row, 0, height - 1), jnp.clip(column, 0, width - 1)
  )
  return jnp.where(inside, pixel, 0)


def _cubic(before, here, after, beyond, part):
  """Interpolates between `here` (part = 0) and `after` (part = 1).

  Horner's form gives exactly the level of four equal pixels. A sum of four
  weighted pixels may fall below it, and truncation would then darken the pixel.
  """
  linear = after - before
  square = 2 * (before - here) + after - beyond
  cube = here - before + beyond - after
  return here + part * (linear + part * (square + part * cube))
