"""Attention in two passes or over all pairs, with shifted windows.

Attention forms share this code. A form defines only how scores become weights
(`Weigh`). Masks are those of Swin. Windows adapt to the map (Gated-SwinRMT,
eq. 9).

Shapes: b batch (times windows if 'cyclic'), h w rows and columns, n heads, d
channels per head, l lines: rows in the width pass, columns in the height pass.
In a pair `[i, j]`, i is the query and j the key.
"""

from collections.abc import Callable, Iterator
import contextlib
import contextvars

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped
import numpy as np

from gswinrmt_jax.ops import equation, padding

WIDTH, HEIGHT = 0, 1  # The passes, and their rows in every `[2, n]` table.

# Finite: with -inf, gradients of a window that is all padding would be NaN.
MASKED = -1e30

# The equation of an attention form, `weigh(scores, decay, mask, size)`. It
# computes weights from scores `[... n i j]` (scaled, with ALiBi), the decay
# `distance log(gamma)` or None, the mask of pairs that may attend or None for
# all, and the effective window size, one per image if they differ.
Weigh = Callable[[Array, Array | None, Array | None, int | Array], Array]

# Attention forms by `score_fn`: along rows, then columns; and, for
# `full_stages`, over all pairs of tokens at once.
FORMS: dict[str, Callable[..., Array]] = {}
FULL_FORMS: dict[str, Callable[..., Array]] = {}

_watcher = contextvars.ContextVar('watcher', default=None)


def attention_form(
    name: str, *, table: dict[str, Callable[..., Array]] = FORMS
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
  """Returns a decorator that registers a function as an attention form.

  Args:
    name: The value of `score_fn` that selects it.
    table: `FORMS` or `FULL_FORMS`.
  """

  def enter(function):
    table[name] = function
    return function

  return enter


@contextlib.contextmanager
def watching(
    see: Callable[[int | None, Array, Array | None], None],
) -> Iterator[None]:
  """Calls `see(axis, weights, mask)` for each attention pass that runs inside.

  Weights are `[b l n i j]`, with the axis of the pass, or `[b n t T]` over all
  pairs, with axis None. Without `jax.disable_jit()`, they are tracers.
  """
  token = _watcher.set(see)
  try:
    yield
  finally:
    _watcher.reset(token)


def _shown(axis, weights, mask):
  if see := _watcher.get():
    see(axis, weights, mask)
  return weights


def axial_attention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None,
    extents: padding.Extents,
    weigh: Weigh,
    *,
    window: int | None,
    shift: int,
    scaled: bool,
    absolute: bool,
) -> Float[Array, 'b h w n d']:
  """Computes decomposed attention: the width pass, then the height pass.

      V'[i, j] = sum_J A_w[i, j, J] V[i, J]
      O[i, j]  = sum_I A_h[j, i, I] V'[I, j]

  where `weigh` computes the weights `A` (RMT, eq. 6). Other arguments, result
  and errors are those of `ops.retention`. `ops.implementations` selects
  'banded' or 'cyclic', which agree to rounding for every size, window and
  shift.
  """
  _check(query, key, value, window, shift)
  _check_heads('log_decay', log_decay, (2, query.shape[3]))
  height, width = lengths = value.shape[1:3]
  rows, columns = (effective_window(each, window, shift) for each in lengths)
  sizes = columns[0], rows[0]
  scale = query.shape[-1] ** -0.5 if scaled else 1.0

  def weights(scores, axis, mask):
    scores = add_alibi(scores * scale, slopes, absolute)
    distance = np.abs(offsets(scores.shape[-1]))
    rates = None if log_decay is None else log_decay[axis]
    return weigh(
        scores, times_distance(rates, distance, scores), mask, sizes[axis]
    )

  if extents is not None:  # Each image has its own windows.
    (tall, mask_h), (broad, mask_w) = (
        own_windows(length, window, shift, extents[:, axis])
        for axis, length in enumerate((height, width))
    )
    sizes = broad, tall
    return _two_passes(query, key, value, weights, (mask_w, mask_h))
  if equation.chosen('attention') != 'cyclic':
    masks = band_mask(width, *columns), band_mask(height, *rows)
    return _two_passes(query, key, value, weights, masks)

  batch = value.shape[0]
  windows, shifts = zip(rows, columns, strict=True)
  query, key, value = (
      partition(x, windows, shifts) for x in (query, key, value)
  )
  # One mask per window of an image, in row-major order like the windows.
  mask_w, mask_h = cyclic_mask(width, *columns), cyclic_mask(height, *rows)
  down, across = len(mask_h), len(mask_w)
  masks = [
      jnp.broadcast_to(mask[None], (batch, *mask.shape)).reshape(
          -1, 1, 1, *mask.shape[1:]
      )
      for mask in (np.tile(mask_w, (down, 1, 1)), mask_h.repeat(across, axis=0))
  ]
  return merge(_two_passes(query, key, value, weights, masks), lengths, shifts)


def _two_passes(query, key, value, weights, masks):
  """Runs both passes over maps or windows; masks are (width, height)."""
  for axis in (WIDTH, HEIGHT):
    # Explicit transposition: with matmuls in the original layout, XLA's CPU
    # backend took twice as long, forward and backward.
    q, k, v = (_lines(x, axis) for x in (query, key, value))
    mask = masks[axis]
    if mask is not None:
      mask = jnp.expand_dims(mask, range(q.ndim - mask.ndim))
    mixed = _mix(_shown(axis, weights(_scores(q, k), axis, mask), mask), v)
    value = _lines(mixed, axis, back=True)
  return value


def _lines(x, axis, *, back=False):
  """Transposes a map to rows (axis 0) or columns, `[b l n i d]`, or back."""
  order = (0, 1, 3, 2, 4) if axis == WIDTH else (0, 2, 3, 1, 4)
  return x.transpose(np.argsort(order) if back else order)


def all_pairs_attention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    extents: padding.Extents,
    weigh: Weigh,
    distance: np.ndarray | Array,
    *,
    scaled: bool,
    mask: np.ndarray | None = None,
) -> Float[Array, 'b h w n d']:
  """Attends over all pairs of tokens: `O[t] = sum_T A[t, T] V[T]`.

  `t` counts the tokens row by row, `t = row W + column`. `weigh` computes the
  weights `A`, with the decay of `distance[t, T]`, for the pairs in `mask[t, T]`
  (None: all). Other arguments, result and errors are those of
  `ops.full_retention`.
  """
  _check(query, key, value, None, 0)
  batch, height, width, heads, dim = query.shape
  _check_heads('log_decay', log_decay, (heads,))
  tokens = (batch, height * width, heads, -1)
  q, k, v = (x.reshape(tokens).swapaxes(1, 2) for x in (query, key, value))
  scores = _scores(q, k) * (dim**-0.5 if scaled else 1.0)
  decay = times_distance(log_decay, distance, scores)
  mask = None if mask is None else jnp.asarray(mask)[None, None]
  if extents is not None:
    keys = padding.valid(extents, height, width).reshape(batch, 1, 1, -1)
    mask = keys if mask is None else keys & mask
  weights = _shown(None, weigh(scores, decay, mask, height * width), mask)
  out = _mix(weights, v)
  return out.swapaxes(1, 2).reshape(value.shape)


def _scores(query, key):
  wide = equation.wide_dtype(query.dtype)
  return jnp.einsum(
      '...id,...jd->...ij', query, key, preferred_element_type=wide
  )


def _mix(weights, value):
  wide = equation.wide_dtype(value.dtype)
  out = jnp.einsum(
      '...ij,...jd->...id',
      weights.astype(value.dtype),
      value,
      preferred_element_type=wide,
  )
  return out.astype(value.dtype)


def _check(query, key, value, window, shift):
  """Raises ValueError for a wrong shape, window or shift."""
  if query.shape != key.shape or query.shape[:4] != value.shape[:4]:
    raise ValueError(
        'Queries, keys and values must be maps [b, h, w, n, d] of one shape, '
        f'not {query.shape}, {key.shape} and {value.shape}.'
    )
  if window is not None and window < 1:
    raise ValueError(
        f'{window=} must be at least 1, or None for the whole axis.'
    )
  if shift < 0:
    raise ValueError(f'{shift=} must not be negative.')


def _check_heads(name, array, shape):
  """Raises ValueError for a wrong shape, which would broadcast silently."""
  if array is not None and array.shape != shape:
    raise ValueError(f'{name} must be of shape {shape}, not {array.shape}.')


def offsets(length: int) -> np.ndarray:
  """Returns signed distances `i - j` of query `i` and key `j`, `[i, j]`."""
  position = np.arange(length)
  return position[:, None] - position[None, :]


def manhattan(height: int, width: int) -> np.ndarray:
  """Returns `|row - ROW| + |column - COLUMN|` of all pairs, `[t, T]`."""
  row, column = np.divmod(np.arange(height * width), width)
  return sum(np.abs(p[:, None] - p[None, :]) for p in (row, column))


def times_distance(
    per_head: Float[Array, ' n'] | None,
    distance: np.ndarray | Array,
    scores: Array,
) -> Float[Array, '*b n i j'] | None:
  """Returns `per_head[n] * distance[i, j]`, to broadcast with `scores`."""
  if per_head is None:
    return None
  per_head = per_head.astype(scores.dtype)[:, None, None]
  distance = jnp.asarray(distance, scores.dtype)[..., None, :, :]
  table = jnp.expand_dims(per_head, range(distance.ndim - 3)) * distance
  return jnp.expand_dims(table, range(scores.ndim - table.ndim))


def add_alibi(
    scores: Float[Array, '*b n i j'],
    slopes: Float[Array, ' n'] | None,
    absolute: bool,
) -> Float[Array, '*b n i j']:
  """Adds the ALiBi bias `slope_n (i - j)`, or `slope_n |i - j|`."""
  if slopes is None:
    return scores
  _check_heads('slopes', slopes, scores.shape[-3:-2])
  distance = offsets(scores.shape[-1])
  if absolute:
    distance = np.abs(distance)
  return scores + times_distance(slopes, distance, scores)


def effective_window(
    extent: int, window: int | None, shift: int
) -> tuple[int, int]:
  """Adapts window and shift to one axis of the map (Gated-SwinRMT, eq. 9).

      M^ = min(M, extent),    s^ = min(s, floor(M^ / 2))

  Eq. 9 takes one minimum over both axes. Where a single window covers the axis,
  `s^ = 0`: a shift would cut the global attention that the paper asks for.

  Args:
    extent: Tokens along the axis.
    window: Nominal window `M` in tokens; None is the whole axis.
    shift: Nominal shift `s` in tokens.

  Returns:
    `(M^, s^)`.
  """
  if window is None or window >= extent:
    return extent, 0
  return window, min(shift, window // 2)


def block_index(
    position: Int[Array | np.ndarray, '...'],
    window: int,
    shift: int | Int[Array, '...'],
) -> Int[Array | np.ndarray, '...']:
  """Returns the index of the shifted window that contains a position.

      block(j) = floor((j - s) / M), counted from -1 or 0

  Two positions of the unshifted map have equal indices exactly if Swin's cyclic
  shift and mask let them attend to each other.
  """
  return (position - shift) // window


def band_mask(extent: int, window: int, shift: int) -> np.ndarray | None:
  """Returns which pairs `[i, j]` of an axis share a window; None if all do."""
  if window >= extent:
    return None
  block = block_index(np.arange(extent), window, shift)
  return block[:, None] == block[None, :]


def own_windows(
    length: int, window: int | None, shift: int, extents: Int[Array, ' b']
) -> tuple[Int[Array, 'b 1 1 1 1'], Bool[Array, 'b 1 1 i j']]:
  """Returns windows and masks of maps that end at `extents` along an axis.

  They equal `effective_window` and `band_mask` of each map without its padding,
  in one program for all maps. Padding is never a key.

  Returns:
    Effective windows and masks, to broadcast with scores `[b l n i j]`.
  """
  window = length if window is None else window
  ends, position = extents[:, None], jnp.arange(length)[None]
  shift = jnp.where(ends > window, min(shift, window // 2), 0)
  block = block_index(position, window, shift)
  mask = block[:, :, None] == block[:, None, :]
  mask &= (position < ends)[:, None, :]
  sizes = jnp.minimum(extents, window)
  return sizes[:, None, None, None, None], mask[:, None, None]


def cyclic_mask(extent: int, window: int, shift: int) -> np.ndarray:
  """Returns Swin's mask: the pairs that may attend after `partition`.

  Returns:
    bool `[windows, i, j]`: both in the same block, and the key not padding.
  """
  padded = -(-extent // window) * window
  position = (np.arange(padded) + shift) % padded
  position = position.reshape(-1, window)
  block = block_index(position, window, shift)
  same = block[:, :, None] == block[:, None, :]
  return same & (position < extent)[:, None, :]


def partition(
    x: Shaped[Array, 'b h w n d'],
    window: tuple[int, int],
    shift: tuple[int, int],
) -> Shaped[Array, 'B M_h M_w n d']:
  """Pads to multiples of the window, rolls by `-shift`, cuts into windows.

  Args:
    x: A map.
    window: Effective window (height, width) in tokens.
    shift: Effective shift (height, width) in tokens.

  Returns:
    Windows in row-major order within each image: `B = b * y * x`.
  """
  batch, height, width, heads, dim = x.shape
  pad_h, pad_w = -height % window[0], -width % window[1]
  x = jnp.pad(x, ((0, 0), (0, pad_h), (0, pad_w), (0, 0), (0, 0)))
  x = jnp.roll(x, (-shift[0], -shift[1]), axis=(1, 2))
  rows, columns = x.shape[1] // window[0], x.shape[2] // window[1]
  x = x.reshape(batch, rows, window[0], columns, window[1], heads, dim)
  return x.swapaxes(2, 3).reshape(-1, window[0], window[1], heads, dim)


def merge(
    windows: Shaped[Array, 'B M_h M_w n d'],
    extent: tuple[int, int],
    shift: tuple[int, int],
) -> Shaped[Array, 'b h w n d']:
  """Undoes `partition`: joins, rolls back and crops to `extent`."""
  _, window_h, window_w, heads, dim = windows.shape
  rows, columns = -(-extent[0] // window_h), -(-extent[1] // window_w)
  x = windows.reshape(-1, rows, columns, window_h, window_w, heads, dim)
  x = x.swapaxes(2, 3)
  x = x.reshape(-1, rows * window_h, columns * window_w, heads, dim)
  x = jnp.roll(x, shift, axis=(1, 2))
  return x[:, : extent[0], : extent[1]]
