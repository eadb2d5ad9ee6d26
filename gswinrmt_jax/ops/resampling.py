"""Resizing of maps: nearest, bilinear, and adaptive average pooling.

Each is a matmul with one matrix per axis,

    y[b, I, J, c] = sum_{i, j} R[I, i] C[J, j] x[b, i, j, c]

and follows PyTorch's rule; `jax.image.resize` follows it only for bilinear
(with `antialias=False`). The matrices are constants, unless the maps have valid
extents (`ops.padding`). Then each image has its own.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import padding
from gswinrmt_jax.ops.layers import wide


@functools.partial(jax.jit, static_argnames='size')
def resize_nearest(
    x: Float[Array, 'b h w c'],
    extents: padding.Extents = None,
    target: padding.Extents = None,
    *,
    size: tuple[int, int],
) -> Float[Array, 'b H W c']:
  """Resizes by nearest neighbour of the corner, `y[I] = x[floor(I h / H)]`.

  `jax.image.resize` takes the nearest centre instead, which is another
  neighbour wherever `H` is not a multiple of `h`.

  Args:
    x: The map.
    extents: Valid rows `h` and columns of `x`; None for all.
    target: Valid rows `H` and columns of the result; None for all.
    size: Rows and columns of the result, padding included.
  """
  return _resample(x, extents, target, size, _nearest)


@functools.partial(jax.jit, static_argnames='size')
def resize_bilinear(
    x: Float[Array, 'b h w c'],
    extents: padding.Extents = None,
    target: padding.Extents = None,
    *,
    size: tuple[int, int],
) -> Float[Array, 'b H W c']:
  """Interpolates bilinearly between pixel centres, without antialiasing.

      s = (I + 1/2) h / H - 1/2, clipped to 0 ... h - 1
      y[I] = (1 - s + floor(s)) x[floor(s)] + (s - floor(s)) x[floor(s) + 1]

  along each axis, as PyTorch does with `align_corners=False`. Arguments are
  those of `resize_nearest`.
  """
  if extents is None and target is None and x.shape[1:3] == size:
    return x
  return _resample(x, extents, target, size, _bilinear)


@functools.partial(jax.jit, static_argnames='bins')
def adaptive_average_pool(
    x: Float[Array, 'b h w c'], extents: padding.Extents = None, *, bins: int
) -> Float[Array, 'b {bins} {bins} c']:
  """Averages over `bins x bins` rectangles that cover the map.

  Bin I has the rows from `floor(I h / bins)` up to, but excluding,
  `ceil((I + 1) h / bins)`; columns likewise. Neighbouring bins share a row
  where their boundary, `(I + 1) h / bins`, is not a whole number.

  Args:
    x: The map.
    extents: Valid rows `h` and columns of `x`; None for all.
    bins: Bins along each axis.
  """
  return _resample(x, extents, None, (bins, bins), _pooling)


# Entries of the matrices, in row i of m and column j of n, that resample n rows
# to m. They are computed in whole numbers, hence exactly, up to the final
# division. In valid rows, columns of padding, j >= n, are 0.


def _nearest(i, m, j, n):
  return i * n // m == j


def _bilinear(i, m, j, n):
  source = ((2 * i + 1) * n - m).clip(0, 2 * m * (n - 1))  # s, times 2 m
  return (2 * m - abs(source - 2 * m * j)).clip(0) / (2 * m)


def _pooling(i, m, j, n):
  first, end = i * n // m, -(-(i + 1) * n // m)
  return ((first <= j) & (j < end)) / (end - first)


def _resample(
    x: Float[Array, 'b h w c'],
    extents: padding.Extents,
    target: padding.Extents,
    size: tuple[int, int],
    entry: Callable[..., np.ndarray | Array],
) -> Float[Array, 'b H W c']:
  """Applies the matrix of each axis, in at least float32."""
  values = wide(x)

  def matrix(axis):
    """Returns `[H, h]`, or `[b, H, h]` if each image has its own matrix."""
    m, n = size[axis], x.shape[1 + axis]
    i, j = np.arange(m)[None, :, None], np.arange(n)[None, None]
    m = m if target is None else target[:, axis, None, None]
    n = n if extents is None else extents[:, axis, None, None]
    entries = jnp.asarray(entry(i, m, j, n), values.dtype)
    return entries[0] if len(entries) == 1 else entries

  rows, columns = matrix(0), matrix(1)
  y = jnp.einsum(
      '...Hh,...hwc,...Ww->...HWc', rows, values, columns, precision='highest'
  )
  return y.astype(x.dtype)
