"""What several equations do to their arrays."""

import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np


def wide(x: Float[Array | np.ndarray, '*b']) -> Float[Array, '*b']:
  """Returns it in float32 at least."""
  return jnp.asarray(x, jnp.promote_types(x.dtype, jnp.float32))


def along_channels(
    vector: Float[Array | np.ndarray, ' c'],
    x: Float[Array | np.ndarray, '*b c'],
) -> Array:
  """Returns the vector with as many axes as `x`, to meet its channels."""
  return jnp.expand_dims(vector, range(x.ndim - 1))
