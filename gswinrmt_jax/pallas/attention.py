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
_STATIC = ('softmax', 'window', 'shift', 'scaled', 'absolute', 'rotation')


@traced_once(*_STATIC)
def attention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '2 n'] | None,
    *,
    softmax: bool,
    slopes: Float[Array, ' n'] | None = None,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = True,
    absolute: bool = False,
    rotation: rotary.Rotation | None = None,
) -> Float[Array, 'b h w n d']:
  """`ops.retention`, or `ops.swat`, by a kernel.

  Args:
    query: As there, like what is not named here.
    key: Keys.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for none.
    softmax: Whether it is the first.
    slopes: ALiBi slopes per head; they have no gradient.
    window: Nominal window.
    shift: Nominal shift.
    scaled: Whether scores are divided by `sqrt(d)`.
    absolute: Whether ALiBi takes `|i - j|`.
    rotation: What turns queries and keys.

  Returns:
    The mixed values, in `value.dtype`; weights in float32 at least.

  Raises:
    ValueError: If lines or heads are none that the kernel is made for.
  """
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
  cos = sin = np.zeros((1, channels))  # not read
  if rotation is not None:
    flip = 1 if rotation.axis == -1 else channels // 2
    cos, sin = (
        table.reshape(-1, channels)
        for table in np.broadcast_arrays(
            *rotary.tables(rotation, height, width)
        )
    )
  form = attention_kernels.Form(
      Windows((width, height), sizes, (columns[1], rows[1])),
      Weights(softmax, channels**-0.5 if scaled else 1.0, absolute),
      heads,
      channels,
      flip,
  )
  dtype = wide_dtype(value.dtype)
  if log_decay is None:
    log_decay = np.zeros((2, heads), dtype)
  if slopes is None:
    slopes = np.zeros((heads,), dtype)
  inputs = attention_kernels.Inputs(
      *(m.reshape(-1, heads * channels) for m in (query, key, value)),
      wide(log_decay).reshape(-1),
      wide(slopes),
      jnp.asarray(cos, dtype),
      jnp.asarray(sin, dtype),
  )
  return _both(inputs, form).reshape(value.shape)


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _both(inputs, form):
  return _forward(inputs, form)[0]


def _forward(inputs, form):
  between, out = attention_kernels.forward(inputs, form)
  return out, (inputs, between)


def _backward(form, residuals, dout):
  inputs, between = residuals
  gradients = attention_kernels.backward(inputs, between, dout, form)
  constants = inputs[len(gradients) :]
  return (
      attention_kernels.Inputs(*gradients, *map(jnp.zeros_like, constants)),
  )


_both.defvjp(_forward, _backward)
