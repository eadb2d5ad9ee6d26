"""Position information: rotation, distances, decay rates, ALiBi."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from gswinrmt_jax.ops import padding
from gswinrmt_jax.ops.layers import wide, wide_dtype


@functools.partial(jax.jit, static_argnames='stride')
def rotate_interleaved(
    x: Float[Array, 'b h w n d'],
    widths: Int[Array, ' b'] | None = None,
    *,
    stride: int,
) -> Float[Array, 'b h w n d']:
  """Applies the rotation of RMT and Retention (Gated-SwinRMT, eq. 4).

  Rotates channels (2m, 2m + 1) by `(row * stride + column) frequency_m`, with
  `frequency_m` from `interleaved_frequencies`.

  Args:
    x: Queries or keys.
    widths: Valid columns of each map, if they differ; they bound the stride.
    stride: Positions from one row to the next: the width of the window.

  Returns:
    The rotated `x`, in `x.dtype`, computed in at least float32.
  """
  cos, sin = _angles(x, interleaved_frequencies, stride, widths)
  cos, sin = cos[..., None], sin[..., None]
  first, second = jnp.split(wide(x).reshape(*x.shape[:-1], -1, 2), 2, -1)
  turned = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], -1
  )
  return turned.reshape(x.shape).astype(x.dtype)


@jax.jit
def rotate_halves(x: Float[Array, 'b h w n d']) -> Float[Array, 'b h w n d']:
  """Applies the rotation of SWAT (Gated-SwinRMT, section 3.3), for both passes.

  Rotates channels (m, m + d / 2) by `(row + column) frequency_m`, with
  `frequency_m` from `half_frequencies`. Scores depend only on the difference of
  two positions: that of the columns within a row, that of the rows within a
  column. So this equals rotation by the position along each pass.

  Args:
    x: Queries or keys.

  Returns:
    The rotated `x`, in `x.dtype`, computed in at least float32.
  """
  cos, sin = _angles(x, half_frequencies, stride=1)
  first, second = jnp.split(wide(x), 2, -1)
  turned = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], -1
  )
  return turned.astype(x.dtype)


def _angles(x, frequencies, stride, widths=None):
  """Returns cosine and sine of each position's angles, `[b h w 1 d/2]`.

  The batch is 1 if all maps have the same positions.
  """
  _, height, width, _, head_dim = x.shape
  row, column = np.indices((1, height, width))[1:]
  place = row * stride + column
  if widths is not None:  # Each image has its own stride.
    place = row * jnp.minimum(widths, stride)[:, None, None] + column
  # The table is in float64: at thousands of radians, float32 loses 4 digits.
  # Images with strides of their own look up their positions in one of all.
  listed = place if widths is None else np.arange(height * width)
  angle = listed[..., None] * frequencies(head_dim)
  cos = jnp.asarray(np.cos(angle), wide_dtype(x.dtype))
  sin = jnp.asarray(np.sin(angle), wide_dtype(x.dtype))
  if widths is not None:
    cos, sin = cos[place], sin[place]
  return cos[..., None, :], sin[..., None, :]  # the same for all heads


def interleaved_frequencies(head_dim: int) -> np.ndarray:
  """Returns the frequencies `10000 ** -linspace(0, 1, d / 2)`, end included.

  They are those of RMT's released code. Its paper has no rotation.
  Gated-SwinRMT (section 3.2) takes the rotation of eq. 4 from RMT.

  Returns:
    float64 `[d / 2]`, radians per position, from 1 down to 1e-4.
  """
  return 10000.0 ** -np.linspace(0, 1, head_dim // 2)


def half_frequencies(head_dim: int) -> np.ndarray:
  """Returns RoPE's `theta_j = 10000 ** (-2 j / d)` (Gated-SwinRMT, sec. 3.3).

  Returns:
    float64 `[d / 2]`, radians per position.
  """
  return 10000.0 ** (-np.arange(head_dim // 2) * 2 / head_dim)


def offsets(length: int) -> np.ndarray:
  """Returns signed distances `i - j` of query `i` and key `j`, `[i, j]`."""
  position = np.arange(length)
  return position[:, None] - position[None, :]


def manhattan(
    height: int, width: int, extents: padding.Extents = None
) -> Int[Array, 't t']:
  """Returns `|row - ROW| + |column - COLUMN|` of all pairs, `[t, T]`.

  It is added up in the program, from a table of each axis: the table of all
  pairs has 85 million entries at 96x96 tokens.
  """
  del extents  # Padding does not move a token.
  down, across = (jnp.asarray(abs(offsets(n))) for n in (height, width))
  distance = down[:, None, :, None] + across[None, :, None, :]
  return distance.reshape(height * width, height * width)


def reading_distance(
    height: int, width: int, extents: padding.Extents = None
) -> Int[Array, '*b t t']:
  """Returns `t - T` of all pairs in reading order, 0 for later keys.

  `t = row W + column` counts valid tokens only. Negative distances, whose decay
  would overflow, are 0.
  """
  place = jnp.arange(height * width)
  if extents is not None:  # `W` is the width of each image.
    row, column = np.divmod(np.arange(height * width), width)
    place = row[None] * extents[:, 1:] + column[None]
  return (place[..., :, None] - place[..., None, :]).clip(0)


def per_head(
    table: Float[Array, ' n'] | None, distance: np.ndarray | Array
) -> Float[Array, '*b n i j'] | None:
  """Returns `table[n] * distance[i, j]`, at least float32; None without one."""
  if table is None:
    return None
  table = wide(table)[:, None, None]
  distance = jnp.asarray(distance, table.dtype)[..., None, :, :]
  return jnp.expand_dims(table, range(distance.ndim - 3)) * distance


def decay_rates(num_heads: int, decay_range: float) -> np.ndarray:
  """Returns RMT's decays `gamma_n = 1 - 2 ** (-2 - r n / N)`, n = 0 ... N - 1.

  This is RMT, eq. 8 with a = 2 and b = 2 + r; the end `b` is never reached.

  Args:
    num_heads: Number of heads `N`.
    decay_range: Spread `r` of the exponents over the heads.

  Returns:
    float64 `[n]` in (0, 1). The first is 0.75; later heads see farther.
  """
  exponent = 2 + decay_range * np.arange(num_heads) / num_heads
  return 1 - 2.0**-exponent


def balanced_slopes(num_heads: int) -> np.ndarray:
  """Returns balanced ALiBi slopes (Gated-SwinRMT, section 3.3).

  Heads 2k - 2 and 2k - 1 get -2**-k and +2**-k, for k = 1 ... floor(N / 2). The
  last of an odd number of heads gets 0. The signs alternate, because listing
  all negative slopes first would tie the short-range heads to one direction.

  Returns:
    float64 `[n]`.
  """
  slopes = np.zeros(num_heads)
  power = 2.0 ** -np.arange(1, num_heads // 2 + 1)
  slopes[: 2 * len(power) : 2] = -power
  slopes[1 : 2 * len(power) : 2] = power
  return slopes
