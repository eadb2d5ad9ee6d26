"""Tests the forms of attention against float64 loops and values by hand."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import jaxtyping
import loops
import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.ops import attention, cyclic_windows, positions

# All sizes differ, so that swapped axes fail.
B, H, W, N, D = 2, 5, 7, 3, 4
RATES = np.array([[0.5, 0.8, 0.95], [0.6, 0.7, 0.9]])  # width, height


def _maps(seed, height=H, width=W, dtype=np.float32):
  rng = np.random.default_rng(seed)
  return tuple(
      rng.normal(size=(B, height, width, N, D)).astype(dtype) for _ in range(3)
  )


@pytest.fixture(params=[False, True], ids=['lines', 'blocks'])
def blocks_of_windows(request, monkeypatch):
  """Cuts short lines, too, into blocks of one window, or leaves them whole."""
  if request.param:
    monkeypatch.setattr(attention, '_BLOCK_TOKENS', 1)
    monkeypatch.setattr(attention, '_LEAST_BLOCKS', 1)
    jax.clear_caches()
  yield
  if request.param:
    jax.clear_caches()


def _retained(maps, window, shift, *, scale=0.5, slopes=(0, 0, 0)):
  def line(q, k, v, head, axis):
    return loops.softmax_line(q, k, v, RATES[axis, head], slopes[head], scale)

  return loops.axial(line, *(m.astype(np.float64) for m in maps), window, shift)


@pytest.mark.parametrize(
    ('window', 'shift'), [(None, 0), (3, 0), (3, 1), (4, 2)]
)
def test_retention_matches_loops(window, shift):
  maps = _maps(0)
  actual = ops.retention(
      *map(jnp.asarray, maps),
      jnp.float32(np.log(RATES)),
      window=window,
      shift=shift,
  )
  np.testing.assert_allclose(actual, _retained(maps, window, shift), atol=2e-6)


def test_switches_of_retention_match_loops():
  """Tests ALiBi on softmax, unscaled scores, and no decay, one at a time."""
  maps, slopes = _maps(1), np.array([-0.5, 0.5, 0.0])
  arrays = [jnp.asarray(m) for m in maps]
  log_decay = jnp.float32(np.log(RATES))
  np.testing.assert_allclose(
      ops.retention(*arrays, log_decay, slopes=jnp.float32(slopes)),
      _retained(maps, None, 0, slopes=slopes),
      atol=2e-6,
  )
  np.testing.assert_allclose(
      ops.retention(*arrays, log_decay, scaled=False),
      _retained(maps, None, 0, scale=1.0),
      atol=2e-6,
  )
  np.testing.assert_allclose(
      ops.retention(*arrays, None),
      ops.retention(*arrays, jnp.zeros((2, N))),
      atol=2e-6,
  )


def _vanilla(query, keys, values):
  """Computes softmax(q k^T / sqrt(d)) V of one query, for keys `[L, d]`."""
  weight = np.exp(keys @ query / np.sqrt(len(query)))
  return weight / weight.sum() @ values


def test_vanilla_attention_matches_loops():
  """Without decay, full attention and attention over rows, then columns."""
  maps = _maps(10, height=3)
  query, key, value = (m.astype(np.float64) for m in maps)
  full, rows, both = (np.zeros_like(value) for _ in range(3))
  for b, i, j, n in np.ndindex(value.shape[:4]):
    q = query[b, i, j, n]
    full[b, i, j, n] = _vanilla(
        q, key[b, :, :, n].reshape(-1, D), value[b, :, :, n].reshape(-1, D)
    )
    rows[b, i, j, n] = _vanilla(q, key[b, i, :, n], value[b, i, :, n])
  for b, i, j, n in np.ndindex(value.shape[:4]):
    both[b, i, j, n] = _vanilla(
        query[b, i, j, n], key[b, :, j, n], rows[b, :, j, n]
    )
  arrays = [jnp.asarray(m) for m in maps]
  np.testing.assert_allclose(ops.full_retention(*arrays, None), full, atol=2e-6)
  np.testing.assert_allclose(ops.retention(*arrays, None), both, atol=2e-6)


def test_absolute_alibi_is_a_decay():
  """With slope s, the bias |i - j| s is the decay of rate exp(s)."""
  arrays = [jnp.asarray(m) for m in _maps(2)]
  slopes = jnp.array([-0.5, -0.25, 0.5])
  np.testing.assert_allclose(
      ops.retention(*arrays, None, slopes=slopes, absolute=True),
      ops.retention(*arrays, jnp.stack([slopes, slopes])),
      atol=2e-6,
  )


def test_weights_of_retention_by_hand():
  """For zero queries and rate 1/2: the first row is (1, 1/2, 1/4) / (7/4)."""
  zeros = jnp.zeros((1, 1, 3, 1, 3))
  value = jnp.eye(3)[None, None, :, None]
  log_decay = jnp.full((2, 1), np.log(0.5))
  weights = ops.retention(zeros, zeros, value, log_decay)[0, 0, :, 0]
  np.testing.assert_allclose(
      weights,
      [[4 / 7, 2 / 7, 1 / 7], [1 / 4, 1 / 2, 1 / 4], [1 / 7, 2 / 7, 4 / 7]],
      rtol=1e-6,
  )


def test_the_width_pass_comes_first():
  """Transposing the map swaps the passes, which do not commute."""
  maps = [jnp.asarray(m) for m in _maps(3)]
  log_decay = jnp.float32(np.log(RATES))
  transposed = ops.retention(
      *(m.swapaxes(1, 2) for m in maps), log_decay[::-1]
  ).swapaxes(1, 2)
  direct = ops.retention(*maps, log_decay)
  assert float(jnp.abs(transposed - direct).max()) > 1e-2


def test_full_matches_loops():
  maps = _maps(4, height=3, width=2)
  query, key, value = (m.astype(np.float64) for m in maps)
  expected = np.zeros_like(value)
  for b, i, j, n in np.ndindex(value.shape[:4]):
    score = np.zeros((3, 2))
    for row, column in np.ndindex(3, 2):
      score[row, column] = query[b, i, j, n] @ key[b, row, column, n] / 2
      score[row, column] += np.log(RATES[0, n]) * (
          abs(i - row) + abs(j - column)
      )
    weight = np.exp(score - score.max())
    weight /= weight.sum()
    expected[b, i, j, n] = np.einsum('hw,hwd->d', weight, value[b, :, :, n])
  actual = ops.full_retention(
      *map(jnp.asarray, maps), jnp.float32(np.log(RATES[0]))
  )
  np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_full_and_decomposed_agree_on_a_single_row():
  maps = [jnp.asarray(m) for m in _maps(5, height=1)]
  log_decay = jnp.float32(np.log(RATES))
  np.testing.assert_allclose(
      ops.full_retention(*maps, log_decay[0]),
      ops.retention(*maps, log_decay),
      atol=2e-6,
  )


def test_gradients_of_retention_by_finite_differences():
  with jax.enable_x64(True):
    maps = tuple(map(jnp.asarray, _maps(7, 3, 4, np.float64)))
    check_grads(
        jax.jit(lambda *a: ops.retention(*a, window=2, shift=1)),
        (*maps, jnp.log(jnp.asarray(RATES))),
        order=1,
    )


def test_float32_inside_whatever_the_dtype():
  """bfloat16 scores of 80 would be off by 2**-8 of that, weights by 30 %."""
  maps = [jnp.asarray(m, jnp.bfloat16) for m in _maps(8)]
  query = maps[0] * 8
  log_decay = jnp.float32(np.log(RATES))
  actual = ops.retention(query, maps[1] * 4, maps[2], log_decay)
  assert actual.dtype == jnp.bfloat16
  wide = [m.astype(jnp.float32) for m in (query, maps[1] * 4, maps[2])]
  expected = ops.retention(*wide, log_decay)
  # Each of two passes rounds its weights and its result once, which bounds
  # the error by 4 * 2**-8 of the largest value.
  bound = 4 * 2.0**-8 * float(jnp.abs(wide[2]).max())
  assert float(jnp.abs(actual.astype(jnp.float32) - expected).max()) < bound


def test_extreme_scores_of_retention_stay_finite(blocks_of_windows):
  maps = [jnp.asarray(m) * 300 for m in _maps(9)]
  theta = jnp.array([[40.0, -40.0, 0.0]] * 2)  # gamma near 1 and near 0

  def loss(theta, *maps):
    log_decay = jax.nn.log_sigmoid(theta)
    return ops.retention(*maps, log_decay, window=3, shift=1).sum()

  value, grads = jax.jit(jax.value_and_grad(loss, range(4)))(theta, *maps)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in grads)


SLOPES = positions.balanced_slopes(N)


def _rotated(x):
  """Rotates the halves of a line `[l, d]` by the index, by hand."""
  half = x.shape[-1] // 2
  angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
  pairs = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
  return np.concatenate([pairs.real, pairs.imag], axis=-1)


def _swatted(maps, window, shift, *, scale=1.0, rotated=True):
  def line(q, k, v, head, axis, size):
    if rotated:
      q, k = _rotated(q), _rotated(k)
    return loops.sigmoid_line(
        q, k, v, RATES[axis, head], SLOPES[head], scale, size
    )

  return loops.axial(
      line,
      *(m.astype(np.float64) for m in maps),
      window,
      shift,
      needs_size=True,
  )


def _tables():
  return jnp.float32(np.log(RATES)), jnp.float32(SLOPES)


@pytest.mark.parametrize(
    ('window', 'shift'), [(None, 0), (3, 0), (3, 1), (4, 2)]
)
def test_swat_matches_loops(window, shift):
  maps = _maps(0)
  query, key, value = map(jnp.asarray, maps)
  actual = ops.swat(query, key, value, *_tables(), window=window, shift=shift)
  np.testing.assert_allclose(actual, _swatted(maps, window, shift), atol=2e-6)


def test_switches_of_swat_match_loops():
  maps = _maps(1)
  arrays = [jnp.asarray(m) for m in maps]
  np.testing.assert_allclose(
      ops.swat(*arrays, *_tables(), window=3, scaled=True),
      _swatted(maps, 3, 0, scale=D**-0.5),
      atol=2e-6,
  )
  np.testing.assert_allclose(
      ops.swat(*arrays, *_tables(), window=3, rotary=False),
      _swatted(maps, 3, 0, rotated=False),
      atol=2e-6,
  )


def _swat_weights(log_decay, slopes, length, window=None, shift=0, **switches):
  zeros = jnp.zeros((1, 1, length, 1, length + length % 2))
  value = jnp.eye(length, zeros.shape[-1])[None, None, :, None]
  # The height pass over a single row multiplies by sigmoid(0) / 1 = 1/2.
  out = ops.swat(
      zeros,
      zeros,
      value,
      log_decay,
      slopes,
      window=window,
      shift=shift,
      **switches,
  )
  return 2 * out[0, 0, :, 0, :length]


def test_weights_of_swat_by_hand():
  """Zero queries, rate 1/2 and no slope give 1/2 / 3 * 2**-|i - j|."""
  weights = _swat_weights(jnp.full((2, 1), np.log(0.5)), None, 3)
  np.testing.assert_allclose(
      weights * 6,
      [[1, 1 / 2, 1 / 4], [1 / 2, 1, 1 / 2], [1 / 4, 1 / 2, 1]],
      rtol=1e-6,
  )


def test_a_positive_slope_prefers_keys_on_the_left():
  """sigmoid(slope (i - j)) with slope ln 3: 3/4 to the left, 1/4 right."""
  slope = jnp.array([np.log(3.0)], jnp.float32)
  weights = _swat_weights(None, slope, 2)
  np.testing.assert_allclose(
      weights * 2, [[1 / 2, 1 / 4], [3 / 4, 1 / 2]], rtol=1e-6
  )
  absolute = _swat_weights(None, slope, 2, absolute=True)
  np.testing.assert_allclose(
      absolute * 2, [[1 / 2, 3 / 4], [3 / 4, 1 / 2]], rtol=1e-6
  )


def test_partial_regions_divide_by_the_whole_window(blocks_of_windows):
  """Five columns, window 4, shift 2: regions of 2 and 3, divided by 4."""
  weights = _swat_weights(None, None, 5, window=4, shift=2)
  expected = np.zeros((5, 5))
  expected[:2, :2] = expected[2:, 2:] = 1 / 8
  np.testing.assert_array_equal(weights, expected)


def test_gradients_of_swat_by_finite_differences():
  with jax.enable_x64(True):
    maps = tuple(map(jnp.asarray, _maps(3, 3, 4, np.float64)))
    check_grads(
        jax.jit(lambda *a: ops.swat(*a, window=2, shift=1)),
        (*maps, jnp.log(jnp.asarray(RATES)), jnp.asarray(SLOPES)),
        order=1,
    )


def test_extreme_scores_of_swat_stay_finite():
  maps = [jnp.asarray(m) * 300 for m in _maps(4)]
  theta = jnp.array([[40.0, -40.0, 0.0]] * 2)

  def loss(theta, *maps):
    log_decay = jax.nn.log_sigmoid(theta)
    return ops.swat(
        *maps,
        log_decay,
        _tables()[1],
        window=3,
        shift=1,
    ).sum()

  value, grads = jax.jit(jax.value_and_grad(loss, range(4)))(theta, *maps)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in grads)


def _linear_line(query, key, value, rate, slope, scale):
  """Mixes a line of tokens `[l, d]` that all see each other."""
  out = np.zeros_like(value)
  for i in range(len(query)):
    for j in range(len(key)):
      score = query[i] @ key[j] * scale + slope * (i - j)
      out[i] += rate ** abs(i - j) * score * value[j]
  return out


def _decayed(maps, window, shift, *, rates=RATES, scale=0.5, slopes=(0, 0, 0)):
  def line(q, k, v, head, axis):
    return _linear_line(q, k, v, rates[axis, head], slopes[head], scale)

  return loops.axial(line, *(m.astype(np.float64) for m in maps), window, shift)


@pytest.mark.parametrize(('window', 'shift'), [(None, 0), (4, 2)])
def test_linear_retention_matches_loops(window, shift):
  maps = _maps(0)
  actual = ops.linear_retention(
      *map(jnp.asarray, maps),
      jnp.float32(np.log(RATES)),
      window=window,
      shift=shift,
  )
  np.testing.assert_allclose(
      actual, _decayed(maps, window, shift), rtol=1e-4, atol=2e-5
  )


def test_switches_of_linear_retention_match_loops():
  """Tests ALiBi on scores, unscaled scores, and no decay, one at a time."""
  maps, slopes = _maps(1), np.array([-0.5, 0.5, 0.0])
  arrays = [jnp.asarray(m) for m in maps]
  log_decay = jnp.float32(np.log(RATES))
  for actual, expected in (
      (
          ops.linear_retention(*arrays, log_decay, slopes=jnp.float32(slopes)),
          _decayed(maps, None, 0, slopes=slopes),
      ),
      (
          ops.linear_retention(*arrays, log_decay, scaled=False),
          _decayed(maps, None, 0, scale=1.0),
      ),
      (
          ops.linear_retention(*arrays, None),
          _decayed(maps, None, 0, rates=np.ones((2, N))),
      ),
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def _all_pairs(maps, factor, scale=0.5):
  """Attends over all pairs, with decay `factor(head, i, j, row, column)`."""
  query, key, value = (m.astype(np.float64) for m in maps)
  expected = np.zeros_like(value)
  for b, i, j, n in np.ndindex(value.shape[:4]):
    for row, column in np.ndindex(value.shape[1:3]):
      weight = query[b, i, j, n] @ key[b, row, column, n] * scale
      weight *= factor(n, i, j, row, column)
      expected[b, i, j, n] += weight * value[b, row, column, n]
  return expected


def _manhattan(head, i, j, row, column):
  return RATES[0, head] ** (abs(i - row) + abs(j - column))


def _causal(head, i, j, row, column):
  ahead = (3 * i + j) - (3 * row + column)
  return RATES[0, head] ** ahead if ahead >= 0 else 0.0


@pytest.mark.parametrize(
    ('form', 'factor', 'without_decay'),
    [
        (ops.full_linear_retention, _manhattan, lambda *_: 1.0),
        (
            ops.causal_retention,
            _causal,
            lambda n, i, j, row, column: float((row, column) <= (i, j)),
        ),
    ],
)
def test_all_pairs_match_loops(form, factor, without_decay):
  """On a map of two rows of three tokens, counted row by row."""
  maps = _maps(2, height=2, width=3)
  arrays = [jnp.asarray(m) for m in maps]
  log_decay = jnp.float32(np.log(RATES[0]))
  for actual, expected in (
      (form(*arrays, log_decay), _all_pairs(maps, factor)),
      (form(*arrays, log_decay, scaled=False), _all_pairs(maps, factor, 1.0)),
      (form(*arrays, None), _all_pairs(maps, without_decay)),
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


def test_weights_without_softmax_by_hand():
  """Scores of 1 and rate 1/2 in a row of three give 2**-|i - j|."""
  unit = jnp.zeros((1, 1, 3, 1, 3)).at[..., 0].set(1.0)
  value = jnp.eye(3)[None, None, :, None]
  log_half = jnp.log(jnp.full((2, 1), 0.5))
  expected = np.array([[1, 1 / 2, 1 / 4], [1 / 2, 1, 1 / 2], [1 / 4, 1 / 2, 1]])
  # The height pass over a single row multiplies by its own score, 1.
  for form, rate, weights in (
      (ops.linear_retention, log_half, expected),
      (ops.full_linear_retention, log_half[0], expected),
      (ops.causal_retention, log_half[0], np.tril(expected)),
  ):
    actual = form(unit, unit, value, rate, scaled=False)
    np.testing.assert_allclose(actual[0, 0, :, 0], weights, rtol=1e-6)


def test_causal_retention_is_its_recurrence():
  """S_t = gamma S_{t-1} + k_t v_t^T, o_t = q_t S_t / sqrt(d) (eq. 1)."""
  maps = _maps(3, height=3, width=4)
  query, key, value = (m.astype(np.float64).reshape(B, 12, N, D) for m in maps)
  expected = np.zeros_like(value)
  for b, n in np.ndindex(B, N):
    state = np.zeros((D, D))
    for t in range(12):
      state = RATES[0, n] * state + np.outer(key[b, t, n], value[b, t, n])
      expected[b, t, n] = query[b, t, n] @ state / 2
  actual = ops.causal_retention(
      *map(jnp.asarray, maps), jnp.float32(np.log(RATES[0]))
  )
  np.testing.assert_allclose(
      actual.reshape(expected.shape), expected, rtol=1e-4, atol=2e-5
  )


def test_causal_decay_over_a_long_map_stays_finite():
  """gamma^-(t - T) of later tokens would overflow: 0.25^-99 is over 1e38."""
  maps = [jnp.asarray(m) for m in _maps(4, height=4, width=25)]

  def loss(log_decay):
    return ops.causal_retention(*maps, log_decay).sum()

  value, grad = jax.value_and_grad(loss)(jnp.log(jnp.full((N,), 0.25)))
  assert np.isfinite(value) and np.isfinite(grad).all()


@pytest.mark.parametrize('form', ops.FORMS)
@pytest.mark.parametrize(
    ('height', 'width', 'window', 'shift'),
    [
        (1, 1, 3, 1),
        (9, 4, 5, 2),  # whole lines
        (57, 5, 14, 7),  # five windows of a column, whole rows
        (3, 60, 13, 3),  # seven windows of a row, padded on both sides
        (49, 28, 7, 3),  # blocks of two windows, in columns
        (2, 65, 4, 1),  # of four
        (4, 50, 12, 0),  # padded behind only
    ],
)
def test_windows_are_those_of_the_cyclic_reference(
    form, height, width, window, shift
):
  """To 1e-12 in float64, and finite, forward and backward."""
  with jax.enable_x64(True):
    maps = tuple(map(jnp.asarray, _maps(0, height, width, np.float64)))
    log_decay = jnp.log(jnp.array([[0.5, 0.8, 0.95], [0.6, 0.7, 0.9]]))
    slopes = jnp.array([-0.5, 0.5, 0.25])
    keywords = ops.FORMS[form].keywords | {'window': window, 'shift': shift}

    def run(attend):
      def loss(*arrays):
        out = attend(*arrays, **keywords)
        return jnp.sum(jnp.sin(out)), out

      (_, out), grads = jax.value_and_grad(loss, range(5), has_aux=True)(
          *maps, log_decay, slopes
      )
      return (out, *grads)

    both = ops.retention, cyclic_windows.cyclic_retention
    runs = jax.jit(lambda: tuple(map(run, both)))()
  for ours, other in zip(*runs, strict=True):
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, other, rtol=1e-12, atol=1e-12)


@hypothesis.given(
    extent=st.integers(1, 200),
    window=st.integers(1, 40),
    shift=st.integers(0, 39),
)
def test_blocks_allow_the_pairs_of_whole_lines(extent, window, shift):
  cut = attention.axis_blocks(extent, window, shift)
  whole = attention.whole_axis(extent, window, shift)
  tokens = cut.count * cut.length
  allowed = np.zeros((cut.count, cut.length, cut.count, cut.length), bool)
  for block in range(cut.count):
    mask = True if cut.mask is None else cut.mask.reshape(cut.count, -1)[block]
    allowed[block, :, block] = (
        np.reshape(mask, (-1, 1))
        if (mask is True)
        else mask.reshape(cut.length, cut.length)
    )
  allowed = allowed.reshape(tokens, tokens)
  line = slice(cut.front, cut.front + extent)
  expected = True if whole.mask is None else whole.mask[0, 0, 0, 0]
  np.testing.assert_array_equal(
      allowed[line, line], np.broadcast_to(expected, (extent, extent))
  )
  # No key is padding, and a block is no longer than two windows or tokens.
  assert allowed[line].sum() == allowed[line, line].sum()
  assert cut.size == whole.size


@pytest.mark.parametrize(
    ('extent', 'window', 'shift', 'expected'),
    [
        (56, 14, 0, (4, 14, 0)),
        (56, 14, 7, (5, 14, 7)),
        (57, 14, 3, (5, 14, 11)),
        (56, 7, 0, (4, 14, 0)),  # blocks of two windows
        (28, 14, 7, (1, 28, 0)),  # fewer than four blocks: the whole line
        (16, 4, 2, (1, 16, 0)),
        (64, None, 0, (1, 64, 0)),
    ],
)
def test_blocks_follow_from_the_sizes(extent, window, shift, expected):
  """Count, length and front; as in the table of times in the module."""
  assert attention.axis_blocks(extent, window, shift)[:3] == expected


def test_weights_of_both_passes_give_the_output():
  maps = [jnp.asarray(m) for m in _maps(0)]
  tables = _tables()
  options = {'window': 3, 'shift': 1, 'weigh': attention.sigmoid_weights}
  across, down = ops.axial_weights(*maps[:2], *tables, **options)
  out = jnp.einsum('bhnwW,bhWnd->bhwnd', across, maps[2])
  out = jnp.einsum('bwnhH,bHwnd->bhwnd', down, out)
  np.testing.assert_allclose(
      out, ops.retention(*maps, *tables, **options), atol=2e-6
  )
  full = ops.full_weights(*maps[:2], tables[0][0])
  out = jnp.einsum('bntT,bTnd->btnd', full, maps[2].reshape(B, H * W, N, D))
  np.testing.assert_allclose(
      out.reshape(maps[2].shape),
      ops.full_retention(*maps, tables[0][0]),
      atol=2e-6,
  )


def test_offsets_are_query_minus_key():
  np.testing.assert_array_equal(
      positions.offsets(3), [[0, -1, -2], [1, 0, -1], [2, 1, 0]]
  )


def test_times_distance_is_the_product_of_head_and_distance():
  scores = jnp.zeros((1, 1, 2, 2, 2))
  table = positions.times_distance(
      jnp.array([2.0, -1.0]), positions.offsets(2), scores
  )
  np.testing.assert_array_equal(
      table, [[[[[0, -2], [2, 0]], [[0, 1], [-1, 0]]]]]
  )


def test_bias_signed_absolute_and_none():
  scores = jnp.ones((1, 1, 1, 2, 2))
  slopes = jnp.array([3.0])
  np.testing.assert_array_equal(
      positions.add_alibi(scores, slopes, False)[0, 0, 0], [[1, -2], [4, 1]]
  )
  np.testing.assert_array_equal(
      positions.add_alibi(scores, slopes, True)[0, 0, 0], [[1, 4], [4, 1]]
  )
  assert positions.add_alibi(scores, None, False) is scores


def test_manhattan_by_hand():
  """Two rows of three, counted row by row, so token 3 is below token 0."""
  np.testing.assert_array_equal(
      positions.manhattan(2, 3),
      [
          [0, 1, 2, 1, 2, 3],
          [1, 0, 1, 2, 1, 2],
          [2, 1, 0, 3, 2, 1],
          [1, 2, 3, 0, 1, 2],
          [2, 1, 2, 1, 0, 1],
          [3, 2, 1, 2, 1, 0],
      ],
  )


def test_scores_weights_and_values_match_loops():
  """The form is asymmetric, so that swapping query and key fails."""
  rng = np.random.default_rng(0)
  query, key, value = (rng.normal(size=(2, 3, 5, 2, 4)) for _ in range(3))
  expected = np.zeros_like(value)
  for b, h, w, n in np.ndindex(query.shape[:4]):
    for row, column in np.ndindex(3, 5):
      score = query[b, h, w, n] @ key[b, row, column, n]
      weight = score * (1 + n) + 0.1 * (h * 5 + w)
      expected[b, h, w, n] += weight * value[b, row, column, n]

  def weigh(scores, log_decay, mask, size):
    assert scores.shape == (2, 2, 15, 15) and size == 15
    assert log_decay is None and mask is None
    head = jnp.arange(1, 3)[None, :, None, None]
    return scores * head + 0.1 * jnp.arange(15)[None, None, :, None]

  actual = ops.full_retention(
      *(jnp.asarray(x, jnp.float32) for x in (query, key, value)),
      None,
      scaled=False,
      weigh=weigh,
  )
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_the_size_is_that_of_each_image():
  """Weights of 1 / size give the mean of the values that are no padding."""
  rng = np.random.default_rng(0)
  value = jnp.asarray(rng.normal(size=(2, 3, 5, 1, 4)), jnp.float32)
  extents = jnp.array([[2, 4], [3, 5]])

  def weigh(scores, log_decay, mask, size):
    return jnp.where(mask, jnp.ones_like(scores) / size, 0)

  out = ops.full_retention(
      value, value, value, None, extents, scaled=False, weigh=weigh
  )
  np.testing.assert_allclose(
      out[0, 0, 0, 0], value[0, :2, :4, 0].mean((0, 1)), rtol=1e-5
  )
  np.testing.assert_allclose(
      out[1, 0, 0, 0], value[1, :, :, 0].mean((0, 1)), rtol=1e-5
  )


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'window': 0}, 'window=0 must be at least 1'),
        ({'window': -3}, 'window=-3 must be at least 1'),
        ({'shift': -1}, 'shift=-1 must not be negative'),
        ({'log_decay': np.zeros(N)}, r'log_decay must be of shape \(2, 3\)'),
        ({'log_decay': np.zeros((2, 1))}, r'not \(2, 1\)'),
        ({'slopes': np.zeros((1, N))}, r'slopes must be of shape \(3,\)'),
        ({'key': np.zeros((B, W, H, N, D))}, 'maps .* of one shape'),
    ],
)
@pytest.mark.parametrize('form', ops.FORMS)
def test_arguments_that_would_give_nonsense_are_refused(
    form, change, message, monkeypatch
):
  """Windows of 0 would give NaN, decays of other shapes would broadcast."""
  # Users run without jaxtyping's checks.
  monkeypatch.setattr(jaxtyping.config, 'jaxtyping_disable', True)
  arguments = dict(zip(('query', 'key', 'value'), _maps(0), strict=True))
  arguments |= {'log_decay': None, 'slopes': None, 'window': 3, **change}
  with pytest.raises(ValueError, match=message):
    ops.FORMS[form](**arguments)


def test_a_batch_of_any_size_is_exported(blocks_of_windows):
  maps = _maps(0)

  @jax.jit
  def program(*maps):
    return ops.retention(*maps, None, window=3, shift=1)

  (batch,) = jax.export.symbolic_shape('b')
  shape = jax.ShapeDtypeStruct((batch, *maps[0].shape[1:]), jnp.float32)
  exported = jax.export.export(program)(shape, shape, shape)
  np.testing.assert_allclose(
      exported.call(*maps), program(*maps), rtol=0, atol=1e-6
  )


@pytest.mark.parametrize('form', ops.FULL_FORMS)
def test_one_decay_for_each_head_is_asked_for(form):
  with pytest.raises(
      ValueError, match=r'must be of shape \(3,\), not \(2, 3\)'
  ):
    ops.FULL_FORMS[form](*_maps(0), np.zeros((2, N)))
