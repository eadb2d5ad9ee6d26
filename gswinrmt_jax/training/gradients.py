"""The length of a gradient, in few launches."""

import collections
from typing import Any

import jax
import jax.numpy as jnp

SMALL = 2**15  # numbers; larger arrays are not worth a copy


def norm(grads: Any) -> jax.Array:
  """Returns the l2 norm of all arrays together.

  Most arrays of a model are vectors, of biases and norms. On a GPU a sum for
  each is a kernel, so it is the norm of all of them joined, and of the norms of
  the columns of large arrays, for which the squares of one shape are added up.
  """
  leaves = jax.tree.leaves(grads)
  small = [leaf.ravel() for leaf in leaves if leaf.size <= SMALL]
  shapes = collections.defaultdict(list)
  for leaf in leaves:
    if leaf.size > SMALL:
      shapes[leaf.shape].append(jnp.square(leaf))
  columns = [
      jnp.sqrt(sum(squares).sum(range(len(shape) - 1)))
      for shape, squares in shapes.items()
  ]
  # Complete before they are joined: else the sums would be computed inside.
  parts = jax.lax.optimization_barrier(small + columns)
  return jnp.sqrt(jnp.sum(jnp.square(jnp.concatenate(parts))))
