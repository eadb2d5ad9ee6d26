"""Swin's shifted windows: the reference of the windows of `ops.attention`.

`partition` pads, rolls and cuts the map, `cyclic_mask` separates the regions
that the roll brought together, and `merge` undoes the partition. The package
computes the same function to rounding, without a roll and without a partition
of both axes, for every size, window and shift.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped
import numpy as np

from gswinrmt_jax.ops import positions
from gswinrmt_jax.ops.attention import (
    effective_window,
    mix_values,
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
  of_rows, of_columns = map(cyclic_mask, extent, sizes, shifts)
  # Lines of the windows, `[b y x l n t d]`: rows, then columns. The tokens of a
  # row are in the columns of the window, those of a column in its rows.
  passes = (
      ((0, 1, 2, 3, 5, 4, 6), of_columns[None, :]),
      ((0, 1, 2, 4, 5, 3, 6), of_rows[:, None]),
  )
  maps = [partition(x, sizes, shifts) for x in (query, key, value)]
  for axis, (order, mask) in enumerate(passes):
    offset = positions.offsets(sizes[1 - axis])
    out = mix_values(
        *(x.transpose(order) for x in maps),
        positions.per_head(slopes, offset),
        positions.per_head(log_decay[axis], abs(offset)),
        mask[None, :, :, None, None],
        sizes[1 - axis],
        scaled=True,
        weigh=weigh,
    )
    maps[2] = out.transpose(np.argsort(order))
  return merge(maps[2], extent, shifts)


def cyclic_mask(extent: int, window: int, shift: int) -> np.ndarray:
  """Returns Swin's mask: the pairs that may attend after `partition`.

  Returns:
    bool `[windows, i, j]`: both in the same region, and the key not padding.
  """
  padded = -(-extent // window) * window
  position = (np.arange(padded) + shift) % padded
  position = position.reshape(-1, window)
  region = window_index(position, window, shift)
  same = region[:, :, None] == region[:, None, :]
  return same & (position < extent)[:, None, :]


def partition(
    x: Shaped[Array, 'b h w n d'],
    window: tuple[int, int],
    shift: tuple[int, int],
) -> Shaped[Array, 'b y x M_h M_w n d']:
  """Pads to multiples of the window, rolls by `-shift`, cuts into windows.

  Args:
    x: A map.
    window: Effective window (height, width) in tokens.
    shift: Effective shift (height, width) in tokens.
  """
  batch, height, width, heads, dim = x.shape
  pad_h, pad_w = -height % window[0], -width % window[1]
  x = jnp.pad(x, ((0, 0), (0, pad_h), (0, pad_w), (0, 0), (0, 0)))
  x = jnp.roll(x, (-shift[0], -shift[1]), axis=(1, 2))
  rows, columns = x.shape[1] // window[0], x.shape[2] // window[1]
  x = x.reshape(batch, rows, window[0], columns, window[1], heads, dim)
  return x.swapaxes(2, 3)


def merge(
    windows: Shaped[Array, 'b y x M_h M_w n d'],
    extent: tuple[int, int],
    shift: tuple[int, int],
) -> Shaped[Array, 'b h w n d']:
  """Undoes `partition`: joins, rolls back and crops to `extent`."""
  x = windows.swapaxes(2, 3)
  batch, rows, height, columns, width, heads, dim = x.shape
  x = x.reshape(batch, rows * height, columns * width, heads, dim)
  x = jnp.roll(x, shift, axis=(1, 2))
  return x[:, : extent[0], : extent[1]]
