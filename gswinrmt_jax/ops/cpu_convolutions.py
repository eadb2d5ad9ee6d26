"""Convolutions that run faster on a CPU than XLA's own.

`ops.depthwise_conv` and `ops.conv3x3` choose them. XLA's CPU backend expands a
grouped convolution into a dense one, and its dense convolutions are slow where
few output positions are left. On an H100, cuDNN's depthwise convolutions are
faster than sums of shifts on large maps, once autotuned
(`benchmarks/results/h100.json`). Times below are for the forward and backward
pass in float32, unless stated otherwise.
"""

import functools
import operator

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array

# Output positions up to which patches are faster than XLA's convolution, ms:
# 2x2 -> 1x1, 256 to 512 channels, batch 128: 313 -> 18; 4x4 -> 2x2: 67 -> 11
# (two cores); 6x4 -> 3x2: 172 -> 16; 6x6 -> 3x3: 32 -> 33 (one core).
_FEW_POSITIONS = 8

# The kernel's gradient is summed in two stages. The first adds at most `_TERMS`
# rows or images, for `_TAPS` taps at a time. XLA's outer loop is over channels;
# LLVM vectorises it only if it unrolls the inner loop, which it does up to
# eight terms. The sums of nine taps fit into registers. Compared with summing
# whole rows, in ms on one core: (8, 56, 56, 192) 3x3: 31 -> 13;
# (8, 14, 14, 768) 3x3: 11 -> 3; (8, 56, 56, 64) 5x5: 24 -> 10.
_TERMS, _TAPS = 8, 9
# On maps of at most `_SMALL_MAP` tokens, the first stage sums a whole map, or a
# row of at most `_TINY_ROW` tokens, for `_GROUP` channels. XLA computes the
# gradient of a LayerNorm after the convolution within these sums, and LLVM then
# fails to vectorise sums by rows: the gradient of `retention_compact` took 1.2
# times as long.
_SMALL_MAP, _TINY_ROW, _GROUP = 64, 4, 16


def leaves_few_positions(size: tuple[int, int], stride: int) -> bool:
  """Returns whether patches are the faster form for a map of `[h, w]`."""
  height, width = (-(-extent // stride) for extent in size)
  return height * width <= _FEW_POSITIONS


def by_patches(x: Array, kernel: Array, *, stride: int) -> Array:
  """Computes `ops.conv3x3` as one matmul of all patches with the kernel."""
  height, width = (-(-extent // stride) for extent in x.shape[1:3])
  rows, columns = stride * (height - 1) + 1, stride * (width - 1) + 1
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  patches = [
      padded[:, u : u + rows : stride, v : v + columns : stride]
      for u in range(3)
      for v in range(3)
  ]
  kernel = kernel.astype(x.dtype).reshape(-1, kernel.shape[-1])
  return jnp.concatenate(patches, axis=-1) @ kernel


@jax.custom_vjp
def by_shifts(x: Array, kernel: Array) -> Array:
  """Computes `ops.depthwise_conv` as a sum of shifted products, in one loop.

  On one core it is 9 to 21 times faster than XLA's grouped convolution, forward
  and backward (float32, 8x8 to 56x56; docs/performance.md). With automatic
  differentiation, each tap of the kernel's gradient would take a pass over the
  map.
  """
  return _sum_of_shifts(x, kernel)


def _sum_of_shifts(x, kernel):
  rows = {}
  # Cast before slicing: slices of 16-bit elements are not read as vectors
  # (12 ms instead of 7 ms).
  for (u, v), view in _shifted_views(_wide(x), kernel.shape[0]):
    product = view * _wide(kernel[u, v])[None, None]
    # One sum per kernel row: in a single sum of 25 taps, each addition waits
    # for the previous one (6 ms instead of 4 ms).
    rows[u] = rows[u] + product if u in rows else product
  return functools.reduce(operator.add, rows.values()).astype(x.dtype)


# Neither function calls one with a custom derivative, so forward-over-reverse
# differentiation works.
def _forward(x, kernel):
  return _sum_of_shifts(x, kernel), (x, kernel)


def _backward(residuals, dy):
  x, kernel = residuals
  dx = _sum_of_shifts(dy, kernel[::-1, ::-1])
  return dx, _kernel_gradient(x, dy, kernel.shape[0]).astype(kernel.dtype)


by_shifts.defvjp(_forward, _backward)


def _shifted_views(x, size):
  """Returns each tap `(u, v)` that meets the map, with the map it reads.

  A tap whose offset from the centre is at least the size of the map
  `[..., h, w, c]` reads only zeros and is skipped: 16 of the 25 taps of a 5x5
  kernel on a 2x2 map.
  """
  *batch, height, width, _ = x.shape
  radius = size // 2
  padded = jnp.pad(x, [(0, 0)] * len(batch) + [(radius, radius)] * 2 + [(0, 0)])
  return [
      ((u, v), padded[..., u : u + height, v : v + width, :])
      for u in range(size)
      for v in range(size)
      if abs(u - radius) < height and abs(v - radius) < width
  ]


def _kernel_gradient(x, dy, size):
  """`dkernel[u, v] = sum_{b, i, j} x[b, i + u - r, j + v - r] dy[b, i, j]`.

  The sum is in at least float32: in bfloat16 it was off by 16 %.
  """
  # Cast before slicing: with bfloat16 slices this took 92 ms instead of 13 ms.
  x, dy = _wide(x), _wide(dy)
  if x.shape[1] * x.shape[2] <= _SMALL_MAP:
    sums = _sums_by_channel_groups(x, dy, size)
  else:
    sums = _sums_by_rows(x, dy, size)
  # The taps that meet the map form a centred rectangle; the others are 0.
  rows, columns = (min(size, 2 * extent - 1) for extent in x.shape[1:3])
  pads = [((size - n) // 2,) * 2 for n in (rows, columns)]
  return jnp.pad(sums.reshape(rows, columns, 1, -1), (*pads, (0, 0), (0, 0)))


def _sums_by_rows(x, dy, size):
  """Returns all taps `[t, c]`; each reduction reads the maps once for 9 taps.

  The first stage adds a few rows or images, or all rows if neither number has a
  divisor from 2 to `_TERMS`.
  """
  shape = list(x.shape)
  terms, axis = max(
      (
          (terms, axis)
          for axis in (0, 1)
          for terms in range(2, _TERMS + 1)
          if shape[axis] % terms == 0
      ),
      default=(shape[1], 1),
  )
  shape[axis : axis + 1] = shape[axis] // terms, terms
  products = [(view * dy).reshape(shape) for _, view in _shifted_views(x, size)]
  sums = []
  for first in range(0, len(products), _TAPS):
    sums += _sum_together(products[first : first + _TAPS], (axis + 1,))
  return jnp.stack([each.sum((0, 1, 2)) for each in sums])


def _sums_by_channel_groups(x, dy, size):
  """Returns all taps `[t, c]`, by groups of channels that fit into L1 cache."""
  rows = x.shape[2] <= _TINY_ROW
  x, dy = map(_channel_groups, (x, dy))
  products = [view * dy for _, view in _shifted_views(x, size)]
  sums = _sum_together(products, (3,) if rows else (2, 3))
  rest = (0, 2) if rows else (0,)
  return jnp.stack([each.sum(rest).reshape(-1) for each in sums])


def _channel_groups(x):
  """Reshapes to `[b, groups, h, w, 16]`; one group if 16 does not divide c."""
  *rest, channels = x.shape
  size = _GROUP if channels % _GROUP == 0 else channels
  return jnp.moveaxis(x.reshape(*rest, channels // size, size), -2, 1)


def _sum_together(maps, axes):
  """Sums several maps of one shape along axes, in one reduction.

  Separate sums are three to eight times slower and take far longer to compile.
  """
  return lax.reduce(
      maps,
      [jnp.zeros((), maps[0].dtype)] * len(maps),
      lambda left, right: tuple(map(operator.add, left, right)),
      dimensions=axes,
  )


def _wide(x):
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))
