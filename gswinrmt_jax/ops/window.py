"""Shifted windows along an axis: sizes, masks, partition.

Attention here is decomposed into a pass over rows and a pass over columns, so
all that matters of a window is which block of its axis a token is in.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped
import numpy as np


def effective(extent: int, window: int | None, shift: int) -> tuple[int, int]:
  """Adapts window and shift to an axis (Gated-SwinRMT, eq. 9), per axis.

      M^ = min(M, extent),    s^ = min(s, floor(M^ / 2))

  and `s^ = 0` where a single window covers the axis: a shift would cut the
  global attention that the paper asks for there.

  Args:
    extent: Tokens along the axis.
    window: Nominal window `M`; None is the whole axis.
    shift: Nominal shift `s`.

  Returns:
    `(M^, s^)`.
  """
  if window is None or window >= extent:
    return extent, 0
  return window, min(shift, window // 2)


def block_index(
    position: Int[Array | np.ndarray, '*n'], window: int, shift: int
) -> Int[Array | np.ndarray, '*n']:
  """Number of the shifted window a position is in.

      block(j) = floor((j - s + M) / M)  if s > 0,  else  floor(j / M)

  Equal numbers are exactly the pairs that Swin's cyclic shift with its mask
  lets attend to each other, in coordinates of the un-shifted map.
  """
  if shift:
    return (position - shift + window) // window
  return position // window


def band_mask(extent: int, window: int, shift: int) -> np.ndarray | None:
  """Which pairs `[i, j]` of an axis share a window; None if all do."""
  if window >= extent:
    return None
  block = block_index(np.arange(extent), window, shift)
  return block[:, None] == block[None, :]


def cyclic_mask(extent: int, window: int, shift: int) -> np.ndarray:
  """Which pairs may attend, after padding, rolling by `-shift`, cutting.

  Returns:
    bool `[windows, i, j]`: the same block, and a key that is no padding.
  """
  padded = -(-extent // window) * window
  position = (np.arange(padded) + shift) % padded
  position = position.reshape(-1, window)
  block = block_index(position, window, shift)
  same = block[:, :, None] == block[:, None, :]
  return same & (position < extent)[:, None, :]


def partition(
    x: Shaped[Array, 'b h w n d'],
    window: tuple[int, int],
    shift: tuple[int, int],
) -> Shaped[Array, 'B M_h M_w n d']:
  """Pads to multiples of the window, rolls by `-shift`, cuts into windows.

  Args:
    x: A map; axes below are (height, width).
    window: Effective window sizes.
    shift: Effective shifts.

  Returns:
    Windows in row-major order within each image: `B = b * y * x`.
  """
  batch, height, width, heads, dim = x.shape
  pad_h, pad_w = -height % window[0], -width % window[1]
  x = jnp.pad(x, ((0, 0), (0, pad_h), (0, pad_w), (0, 0), (0, 0)))
  x = jnp.roll(x, (-shift[0], -shift[1]), axis=(1, 2))
  rows, columns = x.shape[1] // window[0], x.shape[2] // window[1]
  x = x.reshape(batch, rows, window[0], columns, window[1], heads, dim)
  return x.swapaxes(2, 3).reshape(-1, window[0], window[1], heads, dim)


def merge(
    windows: Shaped[Array, 'B M_h M_w n d'],
    extent: tuple[int, int],
    shift: tuple[int, int],
) -> Shaped[Array, 'b h w n d']:
  """Undoes `partition`: joins, rolls back and crops to `extent`."""
  _, window_h, window_w, heads, dim = windows.shape
  rows, columns = -(-extent[0] // window_h), -(-extent[1] // window_w)
  x = windows.reshape(-1, rows, columns, window_h, window_w, heads, dim)
  x = x.swapaxes(2, 3)
  x = x.reshape(-1, rows * window_h, columns * window_w, heads, dim)
  x = jnp.roll(x, shift, axis=(1, 2))
  return x[:, : extent[0], : extent[1]]
