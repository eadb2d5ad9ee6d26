"""Maps at other extents: nearest, bilinear, and adaptive average pooling.

Each is a product with one constant matrix per axis,

    y[b, I, J, c] = sum_{i, j} R[I, i] C[J, j] x[b, i, j, c]

and follows PyTorch's rule, which `jax.image.resize` does for bilinear only
(with `antialias=False`).
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops.equation import equation, wide


@equation
def resize_nearest(
    x: Float[Array, 'b h w c'], *, size: tuple[int, int]
) -> Float[Array, 'b H W c']:
  """Nearest neighbour by the corner, `y[I] = x[floor(I h / H)]`.

  `jax.image.resize` rounds to the nearest centre instead, which is another
  neighbour wherever `H` is no multiple of `h`.

  Args:
    x: The map.
    size: Its new rows `H` and columns `W`.
  """
  return _resample(x, size, nearest_matrix)


@equation
def resize_bilinear(
    x: Float[Array, 'b h w c'], *, size: tuple[int, int]
) -> Float[Array, 'b H W c']:
  """Bilinear interpolation between pixel centres, without antialiasing.

      s = (I + 1/2) h / H - 1/2, between 0 and h - 1
      y[I] = (1 - s + floor(s)) x[floor(s)] + (s - floor(s)) x[floor(s) + 1]

  along each axis: `align_corners=False`.

  Args:
    x: The map.
    size: Its new rows `H` and columns `W`.
  """
  return x if x.shape[1:3] == size else _resample(x, size, bilinear_matrix)


@equation
def adaptive_average_pool(
    x: Float[Array, 'b h w c'], *, bins: int
) -> Float[Array, 'b {bins} {bins} c']:
  """Averages over `bins x bins` rectangles that cover the map.

  Bin I has the rows from `floor(I h / bins)` up to, and without,
  `ceil((I + 1) h / bins)`; columns likewise. Neighbouring bins share a row
  wherever `bins` does not divide `h`.

  Args:
    x: The map.
    bins: Bins along each axis.
  """
  return _resample(x, (bins, bins), pooling_matrix)


def nearest_matrix(extent: int, size: int) -> Float[np.ndarray, 'm n']:
  """Returns the matrix of `resize_nearest`, from n=extent to m=size rows."""
  source = np.arange(size) * extent // size
  return (source[:, None] == np.arange(extent)).astype(float)


def bilinear_matrix(extent: int, size: int) -> Float[np.ndarray, 'm n']:
  """Returns the matrix of `resize_bilinear`, from n=extent to m=size rows."""
  source = (np.arange(size) + 0.5) * extent / size - 0.5
  source = source.clip(0, extent - 1)
  return (1 - np.abs(source[:, None] - np.arange(extent))).clip(min=0)


def pooling_matrix(extent: int, bins: int) -> Float[np.ndarray, 'm n']:
  """Returns the matrix of `adaptive_average_pool`, n=extent rows, m=bins."""
  index, row = np.arange(bins)[:, None], np.arange(extent)
  first, end = index * extent // bins, -(-(index + 1) * extent // bins)
  inside = (first <= row) & (row < end)
  return inside / inside.sum(1, keepdims=True)


def _resample(
    x: Float[Array, 'b h w c'],
    size: tuple[int, int],
    matrix: Callable[[int, int], np.ndarray],
) -> Float[Array, 'b H W c']:
  """Applies the matrix of each axis, in float32 at least."""
  values = wide(x)
  rows, columns = (
      jnp.asarray(matrix(extent, wanted), values.dtype)
      for extent, wanted in zip(x.shape[1:3], size, strict=True)
  )
  y = jnp.einsum('Hh,bhwc,Ww->bHWc', rows, values, columns, precision='highest')
  return y.astype(x.dtype)
