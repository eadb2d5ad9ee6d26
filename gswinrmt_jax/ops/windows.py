"""Shifted windows that adapt to the map (Gated-SwinRMT, eq. 9), Swin's masks.

Two implementations compute the same function. 'banded' leaves the map as it is
and masks whole rows and columns (`band_mask`). 'cyclic' is Swin's: `partition`
pads, rolls and cuts the map, `cyclic_masks` separate the regions that the roll
brought together, and `merge` undoes the partition.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped
import numpy as np


def effective_window(
    extent: int, window: int | None, shift: int
) -> tuple[int, int]:
  """Adapts window and shift to one axis of the map (Gated-SwinRMT, eq. 9).

      M^ = min(M, extent),    s^ = min(s, floor(M^ / 2))

  Eq. 9 takes one minimum over both axes. Where a single window covers the axis,
  `s^ = 0`: a shift would cut the global attention that the paper asks for.

  Args:
    extent: Tokens along the axis.
    window: Nominal window `M` in tokens; None is the whole axis.
    shift: Nominal shift `s` in tokens.

  Returns:
    `(M^, s^)`.
  """
  if window is None or window >= extent:
    return extent, 0
  return window, min(shift, window // 2)


def block_index(
    position: Int[Array | np.ndarray, '...'],
    window: int,
    shift: int | Int[Array, '...'],
) -> Int[Array | np.ndarray, '...']:
  """Returns the index of the shifted window that contains a position.

      block(j) = floor((j - s) / M), counted from -1 or 0

  Two positions of the unshifted map have equal indices exactly if Swin's cyclic
  shift and mask let them attend to each other.
  """
  return (position - shift) // window


def band_mask(extent: int, window: int, shift: int) -> np.ndarray | None:
  """Returns which pairs `[i, j]` of an axis share a window; None if all do."""
  if window >= extent:
    return None
  block = block_index(np.arange(extent), window, shift)
  return block[:, None] == block[None, :]


def own_windows(
    length: int, window: int | None, shift: int, extents: Int[Array, ' b']
) -> tuple[Int[Array, 'b 1 1 1 1'], Bool[Array, 'b 1 1 i j']]:
  """Returns windows and masks of maps that end at `extents` along an axis.

  They equal `effective_window` and `band_mask` of each map without its padding,
  in one program for all maps. Padding is never a key.

  Returns:
    Effective windows and masks, to broadcast with scores `[b l n i j]`.
  """
  window = length if window is None else window
  ends, position = extents[:, None], jnp.arange(length)[None]
  shift = jnp.where(ends > window, min(shift, window // 2), 0)
  block = block_index(position, window, shift)
  mask = block[:, :, None] == block[:, None, :]
  mask &= (position < ends)[:, None, :]
  sizes = jnp.minimum(extents, window)
  return sizes[:, None, None, None, None], mask[:, None, None]


def cyclic_mask(extent: int, window: int, shift: int) -> np.ndarray:
  """Returns Swin's mask: the pairs that may attend after `partition`.

  Returns:
    bool `[windows, i, j]`: both in the same block, and the key not padding.
  """
  padded = -(-extent // window) * window
  position = (np.arange(padded) + shift) % padded
  position = position.reshape(-1, window)
  block = block_index(position, window, shift)
  same = block[:, :, None] == block[:, None, :]
  return same & (position < extent)[:, None, :]


def cyclic_masks(
    extent: tuple[int, int],
    window: tuple[int, int],
    shift: tuple[int, int],
) -> tuple[Bool[np.ndarray, 'l w w'], Bool[np.ndarray, 'l h h']]:
  """Returns the masks of the width and of the height pass of each window.

  Args:
    extent: Height and width of the map in tokens.
    window: Effective window (height, width) in tokens.
    shift: Effective shift (height, width) in tokens.

  Returns:
    Masks of the windows of one map, in the order of `partition`.
  """
  of_rows, of_columns = map(cyclic_mask, extent, window, shift)
  down, across = len(of_rows), len(of_columns)
  return np.tile(of_columns, (down, 1, 1)), of_rows.repeat(across, axis=0)


def partition(
    x: Shaped[Array, 'b h w n d'],
    window: tuple[int, int],
    shift: tuple[int, int],
) -> Shaped[Array, 'B M_h M_w n d']:
  """Pads to multiples of the window, rolls by `-shift`, cuts into windows.

  Args:
    x: A map.
    window: Effective window (height, width) in tokens.
    shift: Effective shift (height, width) in tokens.

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
