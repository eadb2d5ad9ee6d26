"""Attention along an axis by products and sums, one window at a time.

For a GPU: windows are a few tokens wide, so their products are too small for a
matrix unit, and what a library's product costs is bringing its operands into
its order. Letters as in `axial`, and o, the lines that a pass goes along: rows
in the width pass. They stay an axis of their own, in front of the windows,
which have one only where there are several: of axes that are joined, and of
those of one element, XLA makes more kernels.
"""

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import rotary
from gswinrmt_jax.ops import window as window_lib
from gswinrmt_jax.ops.arrays import wide

# What `blocks` makes of `[b o l i n d]` and of `[b l i o n d]`.
_ORDER = ((0, 1, 2, 4, 3, 5), (0, 3, 1, 4, 2, 5))


def blocks(
    x: Float[Array, 'b h w n d'], axis: int, window: int, shift: int
) -> Float[Array, 'b o *l n i d']:
  """Pads, rolls by `-shift` and cuts one axis of a map into windows.

  Args:
    x: A map.
    axis: 0 cuts rows (the width pass), 1 columns.
    window: Effective window of that axis.
    shift: Effective shift.

  Returns:
    The windows `l` of each row, or column, `o`; without `l` where it is one.
  """
  batch, height, width, heads, dim = x.shape
  along = 2 - axis
  pads = [(0, 0)] * 5
  pads[along] = (0, -x.shape[along] % window)
  x = jnp.roll(jnp.pad(x, pads), -shift, axis=along)
  if axis == 0:
    x = x.reshape(batch, height, -1, window, heads, dim)
  else:
    x = x.reshape(batch, -1, window, width, heads, dim)
  x = x.transpose(_ORDER[axis])
  return x.squeeze(2) if x.shape[2] == 1 else x


def unblock(
    x: Float[Array, 'b o *l n i d'],
    axis: int,
    extents: tuple[int, int],
    shift: int,
) -> Float[Array, 'b h w n d']:
  """Undoes `blocks`, for a map of these extents."""
  batch, lines, *_, heads, window, dim = x.shape
  height, width = extents
  x = x.reshape(batch, lines, -1, heads, window, dim)
  x = x.transpose(np.argsort(_ORDER[axis]))
  if axis == 0:
    x = x.reshape(batch, height, -1, heads, dim)
    return jnp.roll(x, shift, axis=2)[:, :, :width]
  x = x.reshape(batch, -1, width, heads, dim)
  return jnp.roll(x, shift, axis=1)[:, :height]


def mask(
    axis: int, extents: tuple[int, int], window: int, shift: int
) -> np.ndarray | None:
  """Which pairs may attend, `[1, 1, l, 1, i, j]`; None if all.

  Never where there is one window: it has no padding and no shift.
  """
  allowed = window_lib.cyclic_mask(extents[1 - axis], window, shift)
  return None if allowed.all() else allowed[None, None, :, None]


def scores(
    query: Float[Array, '*o n i d'],
    key: Float[Array, '*o n j d'],
    turn: rotary.Turn | None = None,
) -> Float[Array, '*o n i j']:
  r"""`q k^T` of each window, in float32 at least, of rotated tokens if asked.

      S_ij = sum_m q_im R_ijm k_jm^T

  for the pairs `m` of channels and what turns them from `j` to `i`: so rotated
  queries and keys need not be written.

  Args:
    query: Queries.
    key: Keys.
    turn: `R`.
  """
  query, key = wide(query), wide(key)
  if turn is None:
    return (query[..., :, None, :] * key[..., None, :, :]).sum(-1)
  # All as [.. i j m p P], or [.. i j p P m], with the channel p of the pair of
  # the query and P of the key's.
  axis = turn.axis
  query, key = (rotary.pairs(x, axis) for x in (query, key))
  query = jnp.expand_dims(query, (-4, axis))
  key = jnp.expand_dims(key, (-5, axis - 1))
  matrices = jnp.asarray(turn.matrices, query.dtype)
  matrices = jnp.expand_dims(matrices, range(query.ndim - 5))
  return (query * key * matrices).sum((-3, -2, -1))


def mix(
    weights: Float[Array, '*o n i j'], value: Float[Array, '*o n j d']
) -> Float[Array, '*o n i d']:
  """`A v` of each window, in the dtype of the values, summed in float32."""
  # Barriers: else what is narrow is written wide, and cast where it is read;
  # backwards, the gradient of the weights. Not of those that are narrow by
  # themselves: their gradient is then computed where it is used.
  if weights.dtype != value.dtype:
    weights = lax.optimization_barrier(weights.astype(value.dtype))
  products = wide(weights)[..., None] * wide(value)[..., None, :, :]
  return lax.optimization_barrier(products.sum(-2).astype(value.dtype))
