"""A batch in pairs: each image and the neighbour that it is mixed with."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def partner(array: Float[Array, 'b ...']) -> Float[Array, 'b ...']:
  """Swaps neighbours: row i of the result is row i^1; an odd last one stays.

  Neighbours lie on the same device of a batch that is spread over several, and
  never meet where the reverse of the batch would pair an image with itself.

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
  """Gives each map its partner's inside of the box: token labeling's mixing.

      y[i, p] = x[i^1, p] inside of the box, else x[i, p]

  Done twice with one box it undoes itself, so it un-mixes too.

  Args:
    x: Maps.
    box: True inside; the same for the whole batch.

  Returns:
    The mixed maps.
  """
  return jnp.where(box[None, :, :, None], partner(x), x)
