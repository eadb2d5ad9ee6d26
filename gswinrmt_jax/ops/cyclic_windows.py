"""Swin's shifted windows: the reference of the windows of `ops.attention`.

`partition` pads, rolls and cuts the map, `cyclic_masks` separate the regions
that the roll brought together, and `merge` undoes the partition. Models do not
use them; `retention` is the same function to rounding, without a roll and
without a partition of both axes, for every size, window and shift.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped
import numpy as np

from gswinrmt_jax.ops import positions
from gswinrmt_jax.ops.attention import (
    attend,
    effective_window,
    softmax_weights,
    Weigh,
    window_index,
)


def cyclic_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, 'passes n'],
    slopes: Float[Array, ' n'] | None = None,
    *,
    window: int,
    shift: int = 0,
    weigh: Weigh = softmax_weights,
) -> Float[Array, 'b h w n d']:
  """Computes `ops.retention` in windows of the rolled map.

  Arguments and result are those of `ops.retention`, which has more options.
  """
  # `partition` cuts maps in the order of their axes: (height, width).
  extent = value.shape[1:3]
  sizes, shifts = zip(
      *(effective_window(n, window, shift) for n in extent), strict=True
  )
  masks = cyclic_masks(extent, sizes, shifts)
  maps = [partition(x, sizes, shifts) for x in (query, key, value)]
  for axis, mask in enumerate(masks):
    # The lines of a window, `[B l n t d]`: its rows, then its columns.
    order = (0, 1, 3, 2, 4) if axis == 0 else (0, 2, 3, 1, 4)
    offset = positions.offsets(sizes[1 - axis])
    out = attend(
        *(x.transpose(order) for x in maps),
        positions.per_head(slopes, offset),
        positions.per_head(log_decay[axis], abs(offset)),
        np.tile(mask, (len(value), 1, 1))[:, None, None],
        sizes[1 - axis],
        scaled=True,
        weigh=weigh,
    )
    maps[2] = out.transpose(np.argsort(order))
  return merge(maps[2], extent, shifts)


def cyclic_mask(extent: int, window: int, shift: int) -> np.ndarray:
  """Returns Swin's mask: the pairs that may attend after `partition`.

  Returns:
    bool `[windows, i, j]`: both in the same block, and the key not padding.
  """
  padded = -(-extent // window) * window
  position = (np.arange(padded) + shift) % padded
  position = position.reshape(-1, window)
  block = window_index(position, window, shift)
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
