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
  frequencies = interleaved_frequencies(x.shape[-1])
  if widths is None:
    return _rotate(x, _places(x, stride), frequencies, -1)
  # Each image has its own stride; all use the same table of angles.
  strides = jnp.minimum(widths, stride)[:, None, None]
  return _rotate(x, _places(x, strides), frequencies, -1)


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
  return _rotate(x, _places(x, 1), half_frequencies(x.shape[-1]), -2)


def _places(x, stride):
  """Returns `row * stride + column`, in NumPy unless the stride is traced."""
  _, height, width, _, _ = x.shape
  row, column = np.indices((1, height, width))[1:]
  return row * stride + column


def _rotate(x, position, frequencies, axis):
  """Rotates pairs `(x_0, x_1)` to `(x_0 cos - x_1 sin, x_1 cos + x_0 sin)`."""
  _, height, width, _, _ = x.shape
  on_host = isinstance(position, np.ndarray)
  shape = (*position.shape, 1, *((-1, 1) if axis == -1 else (1, -1)))

  def angles(function):
    """Tabulates in float64: at thousands of radians, float32 loses 4 digits."""
    places = position if on_host else np.arange(height * width)
    table = function(places[..., None] * frequencies)
    if not on_host:
      table = jnp.asarray(table, wide_dtype(x.dtype))[position]
    return jnp.asarray(table.reshape(shape), wide_dtype(x.dtype))

  cos, sin = angles(np.cos), angles(np.sin)
  pairs = (-1, 2) if axis == -1 else (2, -1)
  first, second = jnp.split(wide(x).reshape(*x.shape[:-1], *pairs), 2, axis)
  turned = jnp.concatenate(
      [first * cos - second * sin, second * cos + first * sin], axis
  )
  return turned.reshape(x.shape).astype(x.dtype)


def interleaved_frequencies(head_dim: int) -> np.ndarray:
  """Returns RMT's frequencies, `10000 ** -linspace(0, 1, d / 2)`, end included.

  Returns:
    float64 `[d / 2]`, radians per position, from 1 down to 1e-4.
  """
  return 10000.0 ** -np.linspace(0, 1, _pairs(head_dim))


def half_frequencies(head_dim: int) -> np.ndarray:
  """Returns RoPE's `theta_j = 10000 ** (-2 j / d)` (Gated-SwinRMT, sec. 3.3).

  Returns:
    float64 `[d / 2]`, radians per position.
  """
  return 10000.0 ** (-np.arange(_pairs(head_dim)) * 2 / head_dim)


def _pairs(head_dim):
  if head_dim % 2:
    raise ValueError(
        f'Rotary embedding rotates pairs of channels; a head has {head_dim}.'
    )
  return head_dim // 2


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
  row, column = np.divmod(np.arange(height * width), width)
  widths = width if extents is None else extents[:, 1:]
  place = jnp.asarray(row * widths if extents is None else row[None] * widths)
  place += column if extents is None else column[None]
  return (place[..., :, None] - place[..., None, :]).clip(0)


def times_distance(
    per_head: Float[Array, ' n'] | None,
    distance: np.ndarray | Array,
    scores: Array,
) -> Float[Array, '*b n i j'] | None:
  """Returns `per_head[n] * distance[i, j]`, to broadcast with `scores`."""
  if per_head is None:
    return None
  per_head = per_head.astype(scores.dtype)[:, None, None]
  distance = jnp.asarray(distance, scores.dtype)[..., None, :, :]
  table = jnp.expand_dims(per_head, range(distance.ndim - 3)) * distance
  return jnp.expand_dims(table, range(scores.ndim - table.ndim))


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


def decay_logits(num_heads: int, decay_range: float) -> np.ndarray:
  """Returns `theta_0`, float64 `[n]`: `sigmoid(theta_0) = decay_rates(...)`."""
  rates = decay_rates(num_heads, decay_range)
  return np.log(rates / (1 - rates))


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


def add_alibi(
    scores: Float[Array, '*b n i j'],
    slopes: Float[Array, ' n'] | None,
    absolute: bool,
) -> Float[Array, '*b n i j']:
  """Adds the ALiBi bias `slope_n (i - j)`, or `slope_n |i - j|`."""
  if slopes is None:
    return scores
  distance = offsets(scores.shape[-1])
  if absolute:
    distance = np.abs(distance)
  return scores + times_distance(slopes, distance, scores)
