"""Where tokens are: rotary embedding, decay rates, ALiBi slopes."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from gswinrmt_jax.ops.equation import equation, wide, wide_dtype


@equation
def rotate_interleaved(
    x: Float[Array, 'b h w n d'],
    widths: Int[Array, ' b'] | None = None,
    *,
    stride: int,
) -> Float[Array, 'b h w n d']:
  """RMT's and the Retention form's rotation (Gated-SwinRMT, eq. 4).

  Turns channels (2m, 2m + 1) by `(row * stride + column) frequency_m`, for
  `frequency_m` of `interleaved_frequencies`.

  Args:
    x: Queries or keys.
    widths: Valid columns of each map, where they differ: the largest stride.
    stride: Positions from one row to the next: the width of the window.

  Returns:
    The rotated `x`, computed in float32 at least, in `x.dtype`.
  """
  frequencies = interleaved_frequencies(x.shape[-1])
  if widths is None:
    return _rotate(x, _places(x, stride), frequencies, -1)
  # Of each image its own strides, within the same table of angles.
  strides = jnp.minimum(widths, stride)[:, None, None]
  return _rotate(x, _places(x, strides), frequencies, -1)


@equation
def rotate_halves(x: Float[Array, 'b h w n d']) -> Float[Array, 'b h w n d']:
  """The SWAT form's rotation (Gated-SwinRMT, section 3.3), for both passes.

  Turns channels (m, m + d / 2) by `(row + column) frequency_m`, for
  `frequency_m` of `half_frequencies`. Scores depend on the difference of two
  positions alone, which in a row is that of the columns, and in a column that
  of the rows: so this is the rotation by the position along each pass.

  Args:
    x: Queries or keys.

  Returns:
    The rotated `x`, computed in float32 at least, in `x.dtype`.
  """
  return _rotate(x, _places(x, 1), half_frequencies(x.shape[-1]), -2)


def _places(x, stride):
  """`row * stride + column`, on the host unless the stride is an image's."""
  _, height, width, _, _ = x.shape
  row, column = np.indices((1, height, width))[1:]
  return row * stride + column


def _rotate(x, position, frequencies, axis):
  """`(x_0, x_1) -> (x_0 cos - x_1 sin, x_1 cos + x_0 sin)`, of pairs."""
  _, height, width, _, _ = x.shape
  on_host = isinstance(position, np.ndarray)
  shape = (*position.shape, 1, *((-1, 1) if axis == -1 else (1, -1)))

  def angles(function):
    """On the host in float64: float32 would lose four digits of thousands."""
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
  """RMT's angles `10000 ** -linspace(0, 1, d / 2)`, end point included.

  Returns:
    float64 `[d / 2]`, radians per position, from 1 down to 1e-4.
  """
  return 10000.0 ** -np.linspace(0, 1, _pairs(head_dim))


def half_frequencies(head_dim: int) -> np.ndarray:
  """The usual angles `10000 ** (-2 j / d)` (Gated-SwinRMT, section 3.3).

  Returns:
    float64 `[d / 2]`, radians per position.
  """
  return 10000.0 ** (-np.arange(_pairs(head_dim)) * 2 / head_dim)


def _pairs(head_dim):
  if head_dim % 2:
    raise ValueError(
        f'Rotary embedding turns pairs of channels, but a head has {head_dim}.'
    )
  return head_dim // 2


def decay_rates(num_heads: int, decay_range: float) -> np.ndarray:
  """RMT's decays `gamma_n = 1 - 2 ** (-2 - r n / N)`, n = 0 ... N - 1.

  RMT, eq. 8 with a = 2 and b = 2 + r; the end `b` itself is never reached.

  Args:
    num_heads: `N`.
    decay_range: `r`, how far the exponents spread over the heads.

  Returns:
    float64 `[n]` in (0, 1); the first is 0.75, later heads see farther.
  """
  exponent = 2 + decay_range * np.arange(num_heads) / num_heads
  return 1 - 2.0**-exponent


def decay_logits(num_heads: int, decay_range: float) -> np.ndarray:
  """`theta_0` with `sigmoid(theta_0) = decay_rates(...)`, float64 `[n]`."""
  rates = decay_rates(num_heads, decay_range)
  return np.log(rates / (1 - rates))


def balanced_slopes(num_heads: int) -> np.ndarray:
  """ALiBi slopes of both signs: heads 2k - 2 and 2k - 1 get -2**-k and +2**-k.

  Gated-SwinRMT, section 3.3, for k = 1 ... floor(N / 2). The signs alternate,
  because listing all negative slopes first would tie the heads of short reach
  to one direction. The last of an odd number of heads gets 0.

  Returns:
    float64 `[n]`.
  """
  slopes = np.zeros(num_heads)
  power = 2.0 ** -np.arange(1, num_heads // 2 + 1)
  slopes[: 2 * len(power) : 2] = -power
  slopes[1 : 2 * len(power) : 2] = power
  return slopes
