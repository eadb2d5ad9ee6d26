"""What several equations do to their arrays."""

from flax.typing import Dtype
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np


def wide_dtype(dtype: Dtype) -> Dtype:
  """Returns the dtype of sums and constants beside it: float32 at least."""
  return jnp.promote_types(dtype, jnp.float32)


def wide(x: Float[Array | np.ndarray, '*b']) -> Float[Array, '*b']:
  """Returns it in float32 at least."""
  return jnp.asarray(x, wide_dtype(x.dtype))


def along_channels(
    vector: Float[Array | np.ndarray, ' c'],
    x: Float[Array | np.ndarray, '*b c'],
) -> Array:
  """Returns the vector with as many axes as `x`, to meet its channels."""
  return jnp.expand_dims(vector, range(x.ndim - 1))
