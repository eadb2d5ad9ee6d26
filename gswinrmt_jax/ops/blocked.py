"""Attention along an axis by products and sums, one window at a time.

For a GPU: windows are a few tokens wide, so their products are too small for a
matrix unit, and what a library's product costs is bringing its operands into
its order. Letters as in `axial`.
"""

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import window as window_lib
from gswinrmt_jax.ops.arrays import wide


def blocks(
    x: Float[Array, 'b h w n d'], axis: int, window: int, shift: int
) -> Float[Array, 'b l n i d']:
  """Pads, rolls by `-shift` and cuts one axis of a map into windows.

  Args:
    x: A map.
    axis: 0 cuts rows (the width pass), 1 columns.
    window: Effective window of that axis.
    shift: Effective shift.

  Returns:
    Windows `l`: rows by windows along them, or windows down by columns.
  """
  batch, height, width, heads, dim = x.shape
  along = 2 - axis
  pads = [(0, 0)] * 5
  pads[along] = (0, -x.shape[along] % window)
  x = jnp.roll(jnp.pad(x, pads), -shift, axis=along)
  if axis == 0:
    x = x.reshape(batch, height, -1, window, heads, dim).swapaxes(3, 4)
  else:
    x = x.reshape(batch, -1, window, width, heads, dim)
    x = x.transpose(0, 1, 3, 4, 2, 5)
  return x.reshape(batch, -1, heads, window, dim)


def unblock(
    x: Float[Array, 'b l n i d'],
    axis: int,
    extents: tuple[int, int],
    shift: int,
) -> Float[Array, 'b h w n d']:
  """Undoes `blocks`, for a map of these extents."""
  batch, _, heads, window, dim = x.shape
  height, width = extents
  if axis == 0:
    x = x.reshape(batch, height, -1, heads, window, dim).swapaxes(3, 4)
    x = x.reshape(batch, height, -1, heads, dim)
    return jnp.roll(x, shift, axis=2)[:, :, :width]
  x = x.reshape(batch, -1, width, heads, window, dim)
  x = x.transpose(0, 1, 4, 2, 3, 5).reshape(batch, -1, width, heads, dim)
  return jnp.roll(x, shift, axis=1)[:, :height]


def mask(
    axis: int, extents: tuple[int, int], window: int, shift: int
) -> np.ndarray | None:
  """Which pairs may attend, `[1, l, 1, i, j]`; None if all."""
  height, width = extents
  allowed = window_lib.cyclic_mask(extents[1 - axis], window, shift)
  if allowed.all():
    return None
  if axis == 0:
    allowed = np.tile(allowed, (height, 1, 1))
  else:
    allowed = allowed.repeat(width, axis=0)
  return allowed[None, :, None]


def scores(
    query: Float[Array, 'b l n i d'], key: Float[Array, 'b l n j d']
) -> Float[Array, 'b l n i j']:
  """`q k^T` of each window, in float32 at least."""
  query, key = wide(query), wide(key)
  return (query[..., :, None, :] * key[..., None, :, :]).sum(-1)


def mix(
    weights: Float[Array, 'b l n i j'], value: Float[Array, 'b l n j d']
) -> Float[Array, 'b l n i d']:
  """`A v` of each window, in the dtype of the values, summed in float32."""
  # Barriers: else what is narrow is written wide, and cast where it is read;
  # backwards, the gradient of the weights.
  weights = wide(lax.optimization_barrier(weights.astype(value.dtype)))
  products = weights[..., None] * wide(value)[..., None, :, :]
  return lax.optimization_barrier(products.sum(-2).astype(value.dtype))
