"""The length of a gradient, in few launches."""

import collections
from typing import Any

import jax
import jax.numpy as jnp

SMALL = 2**15  # numbers; larger arrays are not copied to be joined


def norm(grads: Any) -> jax.Array:
  """Returns the l2 norm of all arrays together.

  Most arrays of a model are vectors, of biases and norms. Their squares are
  summed as those of one: on a GPU a sum for each is a kernel. Squares of large
  arrays are added up for each shape, and summed then.
  """
  leaves = jax.tree.leaves(grads)
  small = [leaf.ravel() for leaf in leaves if leaf.size <= SMALL]
  shapes = collections.defaultdict(list)
  for leaf in leaves:
    if leaf.size > SMALL:
      shapes[leaf.shape].append(jnp.square(leaf))
  sums = [jnp.sum(sum(squares)) for squares in shapes.values()]
  if small:
    # Complete before they are joined: else the sums would be computed inside.
    small = jax.lax.optimization_barrier(small)
    sums.append(jnp.sum(jnp.square(jnp.concatenate(small))))
  return jnp.sqrt(sum(sums))
