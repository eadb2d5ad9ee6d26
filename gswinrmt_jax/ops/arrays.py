"""What several equations do to their arrays."""

import jax
from jax import lax
from jax.experimental import layout
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops.backend import platform
from gswinrmt_jax.ops.launches import in_one_launch

_LARGE = 2**22  # numbers


def wide_dtype(dtype: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
  """Returns the dtype of sums and constants beside it: float32 at least."""
  return jnp.promote_types(dtype, jnp.float32)


def wide(x: Float[Array | np.ndarray, '*b']) -> Float[Array, '*b']:
  """Returns it in float32 at least."""
  return jnp.asarray(x, wide_dtype(x.dtype))


def is_large(x: Float[Array, '*b']) -> bool:
  """Whether, on a GPU, reading a map takes longer than starting a kernel.

  Then passes over it are to be few, else kernels. An H200 reads so much in two
  microseconds. Never on a CPU, nor in a program for any batch size.
  """
  size = x.size
  return platform() != 'cpu' and isinstance(size, int) and size >= _LARGE


def written(x: Float[Array, '*b c']) -> Float[Array, '*b c']:
  """Has XLA write a large map, and its gradient, once and in its dtype.

  It has several readers. XLA would else compute it for each of them again, or
  write it in float32.
  """
  return lax.optimization_barrier(x) if is_large(x) else x


def channels_last(
    x: Float[Array | np.ndarray, '*b c'],
) -> Float[Array, '*b c']:
  """Has XLA lay the map out in memory as it is written here.

  It may else put the tokens last, as the kernel's gradient of a depthwise
  convolution likes it, and turn all of attention around. Not with an older JAX,
  whose XLA then gathers the maps of all devices, nor in a program for any batch
  size, since `jax.export` refuses it.
  """
  if jax.__version_info__ < (0, 12) or not isinstance(x.size, int):
    return x
  order = layout.Layout(tuple(range(x.ndim)))
  return layout.with_layout_constraint(jnp.asarray(x), order)


def along_channels(
    vector: Float[Array | np.ndarray, ' c'],
    x: Float[Array | np.ndarray, '*b c'],
) -> Array:
  """Returns the vector with as many axes as `x`, to meet its channels."""
  return jnp.expand_dims(vector, range(x.ndim - 1))


def image_sums(*maps: Float[Array, 'b *t c']) -> list[Float[Array, 'b c']]:
  """Sums each map over the tokens of an image.

  On a GPU in one sum, which reads once what the maps are computed from.
  """
  axes = range(1, maps[0].ndim - 1)
  if platform() == 'cpu':
    return [each.sum(axes) for each in maps]
  return list(jnp.stack(maps).sum([1 + axis for axis in axes]))


def token_sums(*maps: Float[Array, 'b *t c']) -> list[Float[Array, ' c']]:
  """Sums each map over all tokens; on a GPU in two steps, as XLA does."""
  if platform() == 'cpu':
    return [each.sum(range(each.ndim - 1)) for each in maps]
  return [in_one_launch(each, 'sums').sum(0) for each in image_sums(*maps)]


def token_product(
    x: Float[Array, '*t c'], y: Float[Array, '*t f']
) -> Float[Array, 'c f']:
  """Returns `x^T y` over all tokens, added up in float32 at least."""
  tokens = tuple(range(x.ndim - 1))
  dtype = wide_dtype(x.dtype)
  return jnp.tensordot(x, y, (tokens, tokens), preferred_element_type=dtype)
