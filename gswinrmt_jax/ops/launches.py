"""One launch for what a GPU computes from small arrays in every layer.

What is done to each layer's parameters and to their gradients takes no time,
but is a launch each. XLA makes one of several elementwise computations of one
shape if they read an array in common. The zero that is added here is of such an
array, whose value XLA is not to know.
"""

from typing import TypeVar

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops.backend import platform

# One array for each: what is joined is laid out in memory alike, and parameters
# are copied where that does not suit them. Of one number XLA makes no array.
_LENGTHS = {'forward': 2, 'gradients': 3, 'sums': 4, 'updates': 5}

_Tree = TypeVar('_Tree')


def in_one_launch(
    x: Float[Array | np.ndarray, '*b'], among: str
) -> Float[Array | np.ndarray, '*b']:
  """Returns `x + 0`, on a GPU computed with others of its shape.

  Args:
    x: What is computed elementwise, or what a sum reads.
    among: Which others: 'forward', 'gradients', 'sums' or 'updates'.
  """
  length = _LENGTHS[among]  # Here, so that a wrong name fails on a CPU, too.
  if platform() == 'cpu':
    return x
  zeros = jnp.zeros(length, x.dtype)
  return x + lax.optimization_barrier(zeros)[0]


def gradient_in_one_launch(
    x: Float[Array | np.ndarray, '*b'],
) -> Float[Array | np.ndarray, '*b']:
  """Returns it; on a GPU its gradient is computed with others of its shape.

  Not for one that is a sum: XLA does not add the zero at the end of a sum, so
  it would be a launch of its own.
  """
  return x if platform() == 'cpu' else _identity(x)


def complete(tree: _Tree) -> _Tree:
  """Returns it; on a GPU nothing is computed from a part before all is there.

  XLA changes a parameter in place only if all that reads it must run before; it
  does not order them itself, but copies the parameter.
  """
  return tree if platform() == 'cpu' else lax.optimization_barrier(tree)


@jax.custom_vjp
def _identity(x):
  return x


def _forward(x):
  return x, None


def _backward(residuals, cotangent):
  del residuals
  return (in_one_launch(cotangent, 'gradients'),)


_identity.defvjp(_forward, _backward)
