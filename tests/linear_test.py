"""Retention without softmax, in its three forms, against loops and by hand."""

import jax
import jax.numpy as jnp
import loops
import numpy as np
import pytest

from gswinrmt_jax import ops

# Sizes differ pairwise, so a swapped axis cannot pass.
B, H, W, N, D = 2, 5, 7, 3, 4
RATES = np.array([[0.5, 0.8, 0.95], [0.6, 0.7, 0.9]])  # width, height


def _maps(seed, height=H, width=W, dtype=np.float32):
  rng = np.random.default_rng(seed)
  return tuple(
      rng.normal(size=(B, height, width, N, D)).astype(dtype) for _ in range(3)
  )


def _linear_line(query, key, value, rate, slope, scale):
  """One line of tokens `[l, d]` that all see each other."""
  out = np.zeros_like(value)
  for i in range(len(query)):
    for j in range(len(key)):
      score = query[i] @ key[j] * scale + slope * (i - j)
      out[i] += rate ** abs(i - j) * score * value[j]
  return out


def _expected(maps, window, shift, *, rates=RATES, scale=0.5, slopes=(0, 0, 0)):
  def line(q, k, v, head, axis):
    return _linear_line(q, k, v, rates[axis, head], slopes[head], scale)

  return loops.axial(line, *(m.astype(np.float64) for m in maps), window, shift)


@pytest.mark.parametrize(('window', 'shift'), [(None, 0), (4, 2)])
def test_decomposed_matches_loops(window, shift):
  maps = _maps(0)
  actual = ops.linear_retention(
      *map(jnp.asarray, maps),
      jnp.float32(np.log(RATES)),
      window=window,
      shift=shift,
  )
  np.testing.assert_allclose(
      actual, _expected(maps, window, shift), rtol=1e-4, atol=2e-5
  )


def test_switches_match_loops():
  """ALiBi on the scores, unscaled scores, no decay: each has its place."""
  maps, slopes = _maps(1), np.array([-0.5, 0.5, 0.0])
  arrays = [jnp.asarray(m) for m in maps]
  log_decay = jnp.float32(np.log(RATES))
  for actual, expected in (
      (
          ops.linear_retention(*arrays, log_decay, slopes=jnp.float32(slopes)),
          _expected(maps, None, 0, slopes=slopes),
      ),
      (
          ops.linear_retention(*arrays, log_decay, scaled=False),
          _expected(maps, None, 0, scale=1.0),
      ),
      (
          ops.linear_retention(*arrays, None),
          _expected(maps, None, 0, rates=np.ones((2, N))),
      ),
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def _all_pairs(maps, factor, scale=0.5):
  """`factor(head, row, column, ROW, COLUMN)` is the decay of a pair."""
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
  """On a map of two rows of three, counted row by row."""
  maps = _maps(2, height=2, width=3)
  arrays = [jnp.asarray(m) for m in maps]
  log_decay = jnp.float32(np.log(RATES[0]))
  for actual, expected in (
      (form(*arrays, log_decay), _all_pairs(maps, factor)),
      (form(*arrays, log_decay, scaled=False), _all_pairs(maps, factor, 1.0)),
      (form(*arrays, None), _all_pairs(maps, without_decay)),
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


def test_weights_by_hand():
  """Scores of one, rate 1/2, a row of three: 1/2 to the distance."""
  unit = jnp.zeros((1, 1, 3, 1, 3)).at[..., 0].set(1.0)
  value = jnp.eye(3)[None, None, :, None]
  log_half = jnp.log(jnp.full((2, 1), 0.5))
  expected = np.array([[1, 1 / 2, 1 / 4], [1 / 2, 1, 1 / 2], [1 / 4, 1 / 2, 1]])
  # A height pass over a single row multiplies by its own score, 1.
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


def test_normalize_heads_by_hand():
  """(1, 3): mean 2, deviation 1; a head and a token are a group each."""
  x = jnp.array([[[[[1.0, 3.0], [5.0, 25.0]], [[-7.0, -8.0], [2.0, 2.0]]]]])
  np.testing.assert_allclose(
      ops.normalize_heads(x)[0, 0],
      [[[-1, 1], [-1, 1]], [[1, -1], [0, 0]]],
      atol=1e-5,
  )
  # A variance of 1e-6 beside the epsilon of 1e-6.
  np.testing.assert_allclose(
      ops.normalize_heads(jnp.array([[[[[1e-3, -1e-3]]]]])).ravel(),
      [2**-0.5, -(2**-0.5)],
      rtol=1e-4,
  )


def test_normalize_heads_is_float32_inside():
  x = jnp.asarray(_maps(5)[0] + 64, jnp.bfloat16)
  actual = ops.normalize_heads(x)
  assert actual.dtype == jnp.bfloat16
  np.testing.assert_allclose(
      actual.astype(jnp.float32),
      ops.normalize_heads(x.astype(jnp.float32)),
      atol=2 * 2.0**-8,
  )
