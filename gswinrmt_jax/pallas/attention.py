r"""Attention along rows, then columns, of windows: both passes in one kernel.

    V' = A_w V    O = A_h V'

with `A` from the same rotated queries and keys in both. A program has a window
of one head, whose maps come from memory once, if they stay in a cache from pass
to pass: nothing that is computed from pairs leaves the chip, nothing is brought
into another order before, and a shifted window reads where its tokens are. `V'`
is written, since other threads read it, and kept. Backward, first of the
columns, then of the rows,

    dA_h = dO V'^T    dV' = A_h^T dO    dA_w = dV' V^T    dV = A_w^T dV'

and for both `dq = s dS k`, `dk = s dS^T q`, turned back.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import rotary
from gswinrmt_jax.ops import window as window_lib
from gswinrmt_jax.ops.arrays import wide, wide_dtype
from gswinrmt_jax.ops.traced import traced_once
from gswinrmt_jax.pallas import attention_kernels
from gswinrmt_jax.pallas.lines import TOKENS, Windows
from gswinrmt_jax.pallas.weights import Weights

_CHANNELS = (16, 32, 64, 128)  # of a head: sides of matrix units
_STATIC = ('window', 'shift', 'scaled', 'absolute', 'rotation')


@traced_once(*_STATIC)
def retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '2 n'] | None,
    *,
    slopes: Float[Array, ' n'] | None = None,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = True,
    absolute: bool = False,
    rotation: rotary.Rotation | None = None,
) -> Float[Array, 'b h w n d']:
  """`ops.retention` by a kernel; see there. Slopes have no gradient."""
  static = window, shift, scaled, absolute, rotation
  return _attend(query, key, value, log_decay, slopes, *static, softmax=True)


@traced_once(*_STATIC)
def swat(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '2 n'] | None,
    *,
    slopes: Float[Array, ' n'] | None = None,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = False,
    absolute: bool = False,
    rotation: rotary.Rotation | None = None,
) -> Float[Array, 'b h w n d']:
  """`ops.swat` by a kernel; see there. Slopes have no gradient."""
  static = window, shift, scaled, absolute, rotation
  return _attend(query, key, value, log_decay, slopes, *static, softmax=False)


def check_head(channels: int) -> None:
  """Refuses heads that are no sides of a matrix unit.

  Raises:
    ValueError: If the channels of a head are others.
  """
  if channels not in _CHANNELS:
    raise ValueError(
        f"attention_impl='pallas' is for heads of {_CHANNELS} channels, not "
        f"{channels}: set attention_impl='auto'."
    )


def _attend(
    query,
    key,
    value,
    log_decay,
    slopes,
    window,
    shift,
    scaled,
    absolute,
    rotation,
    *,
    softmax,
):
  _, height, width, heads, channels = value.shape
  columns = window_lib.effective(width, window, shift)
  rows = window_lib.effective(height, window, shift)
  sizes = columns[0], rows[0]
  if max(sizes) > TOKENS:
    raise ValueError(
        f"attention_impl='pallas' is for lines of at most {TOKENS} tokens, "
        f"not {max(sizes)}: set attention_impl='auto'."
    )
  check_head(channels)
  flip = 0
  if rotation is not None:
    flip = 1 if rotation.axis == -1 else channels // 2
  form = attention_kernels.Form(
      Windows((width, height), sizes, (columns[1], rows[1])),
      Weights(softmax, channels**-0.5 if scaled else 1.0, absolute, sizes),
      heads,
      channels,
      flip,
  )
  dtype = wide_dtype(value.dtype)
  if log_decay is None:
    log_decay = np.zeros((2, heads), dtype)
  if slopes is None:
    slopes = np.zeros((heads,), dtype)
  cos = sin = np.zeros((1, channels))  # not read
  if rotation is not None:
    cos, sin = _tables(rotation, height, width)
  maps = (m.reshape(-1, heads * channels) for m in (query, key, value))
  constants = wide(slopes), jnp.asarray(cos, dtype), jnp.asarray(sin, dtype)
  out = _both(*maps, wide(log_decay).reshape(-1), constants, form)
  return out.reshape(value.shape)


def _tables(rotation, height, width):
  """Cosines, and sines with their signs, of each token's channels, float64."""
  across, down = rotation.strides
  position = np.arange(height)[:, None] * down + np.arange(width) * across
  angle = position.reshape(-1, 1) * rotation.frequencies
  signs = np.array([-1.0, 1.0])
  if rotation.axis == -1:
    cos, sin = np.cos(angle).repeat(2, 1), np.sin(angle).repeat(2, 1)
    sin *= np.tile(signs, angle.shape[1])
  else:
    cos, sin = np.tile(np.cos(angle), 2), np.tile(np.sin(angle), 2)
    sin *= signs.repeat(angle.shape[1])
  return cos, sin


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _both(query, key, value, log_decay, constants, form):
  return _forward(query, key, value, log_decay, constants, form)[0]


def _forward(query, key, value, log_decay, constants, form):
  arrays = query, key, value, log_decay, *constants
  between, out = attention_kernels.forward(*arrays, form)
  return out, (arrays, between)


def _backward(form, residuals, dout):
  arrays, between = residuals
  *_, slopes, cos, sin = arrays
  gradients = attention_kernels.backward(*arrays, between, dout, form)
  return *gradients, tuple(map(jnp.zeros_like, (slopes, cos, sin)))


_both.defvjp(_forward, _backward)
