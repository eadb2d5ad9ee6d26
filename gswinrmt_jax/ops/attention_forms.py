"""The attention forms of the papers: retention (eq. 3) and SWAT (eq. 7).

A form attends along the rows of a map, then along its columns
(`axial_attention`), or over all pairs of tokens (`all_pairs_attention`). It
defines only how scores become weights (`Weigh`); windows and their masks
(eq. 9) are in `windows`, rotation and distances in `positions`.

Shapes: b batch (times windows if 'cyclic', see `windows`), h w rows and
columns, n heads, d channels per head, l lines: rows in the width pass, columns
in the height pass. In weights `[i, j]`, i is the query and j the key.
"""

from collections.abc import Callable, Iterator
import contextlib
import contextvars

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.ops import padding, positions, windows
from gswinrmt_jax.ops.registry import chosen, equation, wide_dtype

WIDTH, HEIGHT = 0, 1  # The passes, and their rows in every `[2, n]` table.

# Finite: with -inf, gradients of a window that is all padding would be NaN.
MASKED = -1e30

# The equation of an attention form, `weigh(scores, decay, mask, size)`. It
# returns the weights `[... n i j]` for
#   scores: Scores `[... n i j]`, scaled and with ALiBi.
#   decay: `distance log(gamma)`, to broadcast with scores; None for no decay.
#   mask: Pairs that may attend, likewise; None for all.
#   size: Effective window in tokens; if images have their own, an array that
#     broadcasts with scores.
Weigh = Callable[[Array, Array | None, Array | None, int | Array], Array]

_watcher = contextvars.ContextVar('watcher', default=None)


def _softmax_weights(scores, decay, mask, size):
  """Returns `softmax(scores + distance log(gamma))` over unmasked pairs."""
  del size  # Rows are normalised by their own sum.
  if decay is not None:
    scores += decay
  if mask is not None:
    scores = jnp.where(mask, scores, MASKED)
  return jax.nn.softmax(scores)


@equation
def retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None = None,
    extents: padding.Extents = None,
    *,
    window: int | None = None,
    shift: int = 0,
    scaled: bool = True,
    absolute: bool = False,
    impl: str = 'auto',
) -> Float[Array, 'b h w n d']:
  r"""Computes decomposed Manhattan self-attention (Gated-SwinRMT, eq. 3).

      A = softmax(q k^T / sqrt(d) + slope (i - j) + |i - j| log(gamma) + mask)

  along each row of a window, then along each column. Without a window this is
  RMT's decomposed form (RMT, eq. 6). RMT's paper multiplies by the decay after
  the softmax. Its released code adds the logarithm before the softmax, as done
  here, so rows sum to one.

  Args:
    query: Queries, already rotated if they should be.
    key: Keys of the same shape.
    value: Values.
    log_decay: `log(gamma)` per pass (width, height) and head; None for no
      decay.
    slopes: ALiBi slopes per head, for both passes; None, as in the paper, for
      no bias.
    extents: Valid rows and columns of each map, see `ops.padding`. The result
      is that of the map without padding.
    window: Nominal window in tokens; None for whole rows and columns.
    shift: Nominal shift of the windows, in tokens.
    scaled: Whether scores are divided by `sqrt(d)`.
    absolute: Whether slopes multiply `|i - j|` instead of `i - j`.
    impl: How windows are computed: 'banded' (always with extents), 'cyclic', or
      'auto', which leaves it to `ops.implementations`.

  Returns:
    The output `A_h A_w V`, in `value.dtype`; weights are computed in at least
    float32.

  Raises:
    ValueError: If a shape, the window, the shift or `impl` is wrong.
  """
  return axial_attention(
      query,
      key,
      value,
      log_decay,
      slopes,
      extents,
      _softmax_weights,
      window=window,
      shift=shift,
      scaled=scaled,
      absolute=absolute,
      impl=impl,
  )


def _sigmoid_weights(scores, decay, mask, size):
  """Returns `sigmoid(scores) / size * gamma^distance`, or 0 where masked."""
  weights = jax.nn.sigmoid(scores) / size
  if decay is not None:
    weights *= jnp.exp(decay)
  return weights if mask is None else jnp.where(mask, weights, 0)


@equation
def swat(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    slopes: Float[Array, '...'] | None,
    extents: padding.Extents = None,
    *,
    window: int | None,
    shift: int = 0,
    scaled: bool = False,
    absolute: bool = False,
    impl: str = 'auto',
    rotary: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Computes sigmoid window attention, axis by axis (Gated-SwinRMT, eq. 7).

      A = sigmoid(q k^T + slope (i - j) + mask) / w_s * gamma^|i - j|

  where `w_s` is the effective window of the axis, even where a region at the
  border of the map is smaller. Weights of masked pairs are exactly 0.

  Arguments, result and errors are those of `ops.retention`, except that scores
  are not divided by `sqrt(d)` by default, and `slopes` and `window` have no
  default. Queries and keys are rotated here by `ops.rotate_halves` (section
  3.3), unless `rotary` is False.
  """
  if rotary:
    query, key = (positions.rotate_halves(x) for x in (query, key))
  return axial_attention(
      query,
      key,
      value,
      log_decay,
      slopes,
      extents,
      _sigmoid_weights,
      window=window,
      shift=shift,
      scaled=scaled,
      absolute=absolute,
      impl=impl,
  )


@equation
def full_retention(
    query: Float[Array, 'b h w n d'],
    key: Float[Array, 'b h w n d'],
    value: Float[Array, 'b h w n d'],
    log_decay: Float[Array, '...'] | None,
    extents: padding.Extents = None,
    *,
    scaled: bool = True,
) -> Float[Array, 'b h w n d']:
  r"""Computes Manhattan self-attention (MaSA; RMT, eq. 5, as released).

      A = softmax(q k^T / sqrt(d) + (|row - ROW| + |col - COL|) log(gamma))

  over all pairs of tokens.

  Args:
    query: Queries, already rotated if they should be.
    key: Keys of the same shape.
    value: Values.
    log_decay: `log(gamma)` per head; None for no decay.
    extents: Valid rows and columns of each map, see `ops.padding`.
    scaled: Whether scores are divided by `sqrt(d)`.

  Returns:
    The output `A V`, in `value.dtype`; weights are computed in at least
    float32.

  Raises:
    ValueError: If a shape is wrong.
  """
  distance = positions.manhattan(*query.shape[1:3])
  return all_pairs_attention(
      query,
      key,
      value,
      log_decay,
      extents,
      _softmax_weights,
      distance,
      scaled=scaled,
  )


@contextlib.contextmanager
def watching(
    see: Callable[[int | None, Array, Array | None], None],
) -> Iterator[None]:
  """Calls `see(axis, weights, mask)` for each attention pass that runs inside.

  Weights are `[b l n i j]`, with the axis of the pass, or `[b n t T]` over all
  pairs, with axis None. Use it inside `jax.disable_jit()`. Otherwise `see` gets
  tracers, and only where shapes are traced for the first time.
  """
  token = _watcher.set(see)
  try:
    yield
  finally:
    _watcher.reset(token)


def _notify(axis, weights, mask):
  if see := _watcher.get():
    see(axis, weights, mask)


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
    impl: str = 'auto',
) -> Float[Array, 'b h w n d']:
  """Computes decomposed attention: the width pass, then the height pass.

      V'[y, x] = sum_X A_w[y, x, X] V[y, X]
      O[y, x]  = sum_Y A_h[x, y, Y] V'[Y, x]

  where `weigh` computes the weights `A` (RMT, eq. 6); capitals are the key's
  row and column. Other arguments, result and errors are those of
  `ops.retention`. 'banded' and 'cyclic' agree to rounding for every size,
  window and shift.
  """
  _check(query, key, value, window, shift)
  impl = chosen('attention', impl)
  heads = query.shape[3]
  _check_heads('log_decay', log_decay, (2, heads))
  _check_heads('slopes', slopes, (heads,))
  height, width = value.shape[1:3]
  scale = query.shape[-1] ** -0.5 if scaled else 1.0

  def weights_of(scores, axis, mask, size):
    scores = positions.add_alibi(scores * scale, slopes, absolute)
    distance = np.abs(positions.offsets(scores.shape[-1]))
    log_rates = None if log_decay is None else log_decay[axis]
    decay = positions.times_distance(log_rates, distance, scores)
    return weigh(scores, decay, mask, size)

  # Sizes, shifts and masks are in the order of the passes: (width, height).
  if extents is not None:  # Each image has its own windows.
    sizes, masks = zip(
        windows.own_windows(width, window, shift, extents[:, 1]),
        windows.own_windows(height, window, shift, extents[:, 0]),
        strict=True,
    )
    return _two_passes(query, key, value, weights_of, masks, sizes)
  sizes, shifts = zip(
      windows.effective_window(width, window, shift),
      windows.effective_window(height, window, shift),
      strict=True,
  )
  if impl != 'cyclic':
    masks = map(windows.band_mask, (width, height), sizes, shifts)
    return _two_passes(query, key, value, weights_of, tuple(masks), sizes)
  # `windows` cuts maps in the order of their axes: (height, width).
  extent, window_hw, shift_hw = (height, width), sizes[::-1], shifts[::-1]
  of_maps = (value.shape[0], 1, 1)  # The windows of all maps are one axis.
  masks = [
      jnp.tile(mask, of_maps)[:, None, None]
      for mask in windows.cyclic_masks(extent, window_hw, shift_hw)
  ]
  parts = (
      windows.partition(x, window_hw, shift_hw) for x in (query, key, value)
  )
  out = _two_passes(*parts, weights_of, masks, sizes)
  return windows.merge(out, extent, shift_hw)


def _two_passes(query, key, value, weights_of, masks, sizes):
  """Runs both passes over maps or windows."""
  for axis in (WIDTH, HEIGHT):
    # Explicit transposition: with matmuls in the original layout, XLA's CPU
    # backend took twice as long, forward and backward.
    q, k, v = (_lines(x, axis) for x in (query, key, value))
    mask = masks[axis]
    if mask is not None:
      mask = jnp.expand_dims(mask, range(q.ndim - mask.ndim))
    a = weights_of(_scores(q, k), axis, mask, sizes[axis])
    _notify(axis, a, mask)
    value = _lines(_mix(a, v), axis, back=True)
  return value


def _lines(x, axis, *, back=False):
  """Transposes a map to rows (axis 0) or columns, `[b l n i d]`, or back."""
  order = (0, 1, 3, 2, 4) if axis == WIDTH else (0, 2, 3, 1, 4)
  # `argsort` is the inverse of a permutation.
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
  decay = positions.times_distance(log_decay, distance, scores)
  mask = None if mask is None else jnp.asarray(mask)[None, None]
  size = height * width
  if extents is not None:
    keys = padding.valid(extents, height, width).reshape(batch, 1, 1, -1)
    mask = keys if mask is None else keys & mask
    size = extents.prod(1).reshape(batch, 1, 1, 1)
  weights = weigh(scores, decay, mask, size)
  _notify(None, weights, mask)
  out = _mix(weights, v)
  return out.swapaxes(1, 2).reshape(value.shape)


def _scores(query, key):
  return jnp.einsum(
      '...id,...jd->...ij',
      query,
      key,
      preferred_element_type=wide_dtype(query.dtype),
  )


def _mix(weights, value):
  out = jnp.einsum(
      '...ij,...jd->...id',
      weights.astype(value.dtype),
      value,
      preferred_element_type=wide_dtype(value.dtype),
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
