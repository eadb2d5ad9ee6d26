"""Pairs of neighbouring images in a batch, which are mixed."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def partner(array: Float[Array, 'b ...']) -> Float[Array, 'b ...']:
  """Swaps neighbours: row i of the result is row i^1; an odd last one stays.

  In a batch that is sharded over devices, neighbours are on the same device, so
  mixing them needs no communication.

  Args:
    array: Images, maps or targets.

  Returns:
    The same rows in the order 1, 0, 3, 2, ...
  """
  even = array.shape[0] // 2 * 2
  pairs = array[:even].reshape(even // 2, 2, *array.shape[1:])
  swapped = pairs[:, ::-1].reshape(even, *array.shape[1:])
  return jnp.concatenate([swapped, array[even:]])


def swap_inside(
    x: Float[Array, 'b h w c'], box: Bool[Array, 'h w']
) -> Float[Array, 'b h w c']:
  """Replaces each map inside the box by its partner's, for token labeling.

      y[i, p] = x[i^1, p] inside the box, else x[i, p]

  Applying it twice with the same box restores the maps.

  Args:
    x: Maps.
    box: True inside; the same for the whole batch.

  Returns:
    The mixed maps.
  """
  return jnp.where(box[None, :, :, None], partner(x), x)
