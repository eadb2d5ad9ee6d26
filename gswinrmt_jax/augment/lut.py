"""Operations on grey levels: one table of 256 entries per image and channel.

Each table is the one Pillow builds, to the integer; `tests/lut_test.py` holds
them side by side. Tables are indexed `b 256 c`: image, old grey level, channel.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt8
import numpy as np

from gswinrmt_jax.augment import pixels

Table = Int32[Array, 'b 256 c']


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
  """Looks every level up in its table: `out[b, y, x, c] = table[b, level, c]`.

  Args:
    packed: The images, packed.
    table: New levels, for each image, old level and channel.

  Returns:
    The images with the new levels, packed.
  """
  batch = packed.shape[0]
  entries = table.reshape(batch, 256 * 3)
  levels = []
  for channel, level in enumerate(pixels.channels(packed)):
    place = (level * 3 + channel).reshape(batch, -1)
    new = jnp.take_along_axis(entries, place, axis=1, mode='promise_in_bounds')
    levels.append(new.reshape(packed.shape))
  return pixels.join(*levels)


def autocontrast_table(counts: Table) -> Table:
  """Stretches the grey levels that occur, lo to hi, over 0 to 255.

      table[v] = floor(255 (v - lo) / (hi - lo)) - error[lo, hi, v]

  Pillow computes `int(v * scale - lo * scale)` in float64. Where the quotient
  is a whole number, rounding sometimes leaves that a hair below, and `int`
  takes a whole level off: `error` is 1 there. Elsewhere it is 0.

  Args:
    counts: Histogram of the image.

  Returns:
    The table; the identity for a channel of a single grey level. Entries of
    levels that do not occur are arbitrary.
  """
  level = _levels()
  present = counts > 0
  low = jnp.argmax(present, axis=1, keepdims=True).astype(jnp.int32)
  high = 255 - jnp.argmax(present[:, ::-1], axis=1, keepdims=True)
  high = high.astype(jnp.int32)
  span = jnp.maximum(high - low, 1)
  scaled = (level - low) * 255
  whole = (scaled % span == 0) & (level > low) & (level <= high)
  bits, first, parts = (jnp.asarray(a) for a in _autocontrast_errors())
  # The whole quotients of a span are numbered 1 to gcd(255, span).
  number = (level - low) * parts[span] // span
  place = first[span] + low * parts[span] + number - 1
  place = jnp.where(whole, place, 0)
  error = (bits[place >> 3].astype(jnp.int32) >> (place & 7)) & 1
  stretched = scaled // span - jnp.where(whole, error, 0)
  return jnp.where(high > low, jnp.clip(stretched, 0, 255), level)


@functools.cache
def _autocontrast_errors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Finds where float64 falls below a whole quotient, by Pillow's expression.

  Returns:
    One bit for each case, packed (20 kB); for each span the number of its
    first bit; for each span the number of its whole quotients, gcd(255, span).
    The bit of span, lo and the n-th whole quotient, n from 1, has the number
    `first[span] + lo * parts[span] + n - 1`.
  """
  parts = np.array([math.gcd(255, span) for span in range(256)], np.int32)
  cases = (256 - np.arange(256)) * parts
  cases[0] = 0  # a single grey level has nothing to stretch
  first = np.concatenate([[0], np.cumsum(cases)[:-1]]).astype(np.int32)
  bits = []
  for span in range(1, 256):
    low = np.arange(256 - span, dtype=np.float64)[:, None]
    number = np.arange(1, parts[span] + 1)
    level = low + number * span // parts[span]
    scale = 255.0 / span
    quotient = level * scale + -low * scale
    bits.append((quotient < number * 255 // parts[span]).ravel())
  packed = np.packbits(np.concatenate(bits), bitorder='little')
  return packed, first, parts


def equalize_table(counts: Table) -> Table:
  """Spreads the pixels evenly over the grey levels.

      table[v] = (step // 2 + pixels darker than v) // step

  with `step` a 255th of the pixels that are not of the brightest level.

  Args:
    counts: Histogram of the image.

  Returns:
    The table; the identity where `step` is 0.
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
  """Keeps the `bits` highest bits of a level; with 0 bits all is black."""
  drop = (8 - bits)[:, None, None]
  return (_levels() >> drop) << drop


def solarize_table(threshold: Int32[Array, ' b']) -> Int32[Array, 'b 256 1']:
  """Inverts the levels from `threshold` on; 256 leaves all as they are."""
  level = _levels()
  return jnp.where(level < threshold[:, None, None], level, 255 - level)


def solarize_add_table(
    addend: Int32[Array, ' b'],
) -> Int32[Array, 'b 256 1']:
  """Adds `addend` to the levels below 128, up to 255."""
  level = _levels()
  brighter = jnp.minimum(level + addend[:, None, None], 255)
  return jnp.where(level < 128, brighter, level)


def _levels() -> Int32[Array, '1 256 1']:
  return jnp.arange(256, dtype=jnp.int32)[None, :, None]
