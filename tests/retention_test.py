"""Retention, decomposed and full, against loops in float64 and by hand."""

import jax
import jax.numpy as jnp
from jax.test_util import check_grads
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


def _expected(maps, window, shift, *, scale=0.5, slopes=(0, 0, 0)):
  def line(q, k, v, head, axis):
    return loops.softmax_line(q, k, v, RATES[axis, head], slopes[head], scale)

  return loops.axial(line, *(m.astype(np.float64) for m in maps), window, shift)


@pytest.mark.parametrize('impl', ['banded', 'cyclic', 'blocked'])
@pytest.mark.parametrize(
    ('window', 'shift'), [(None, 0), (3, 0), (3, 1), (4, 2)]
)
def test_matches_loops(window, shift, impl):
  maps = _maps(0)
  actual = ops.retention(
      *map(jnp.asarray, maps),
      jnp.float32(np.log(RATES)),
      window=window,
      shift=shift,
      impl=impl,
  )
  np.testing.assert_allclose(actual, _expected(maps, window, shift), atol=2e-6)


def test_switches_match_loops():
  """ALiBi on softmax, unscaled scores, no decay: each has its place."""
  maps, slopes = _maps(1), np.array([-0.5, 0.5, 0.0])
  arrays = [jnp.asarray(m) for m in maps]
  log_decay = jnp.float32(np.log(RATES))
  np.testing.assert_allclose(
      ops.retention(*arrays, log_decay, slopes=jnp.float32(slopes)),
      _expected(maps, None, 0, slopes=slopes),
      atol=2e-6,
  )
  np.testing.assert_allclose(
      ops.retention(*arrays, log_decay, scaled=False),
      _expected(maps, None, 0, scale=1.0),
      atol=2e-6,
  )
  np.testing.assert_allclose(
      ops.retention(*arrays, None),
      ops.retention(*arrays, jnp.zeros((2, N))),
      atol=2e-6,
  )


def _vanilla(query, keys, values):
  """softmax(q k^T / sqrt(d)) V of one query; `[L, d]` keys, no decay."""
  weight = np.exp(keys @ query / np.sqrt(len(query)))
  return weight / weight.sum() @ values


def test_vanilla_attention_matches_loops():
  """No decay: over all pairs, and over rows, then columns."""
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
  """With slope s, |i - j| s is the decay of rate exp(s)."""
  arrays = [jnp.asarray(m) for m in _maps(2)]
  slopes = jnp.array([-0.5, -0.25, 0.5])
  np.testing.assert_allclose(
      ops.retention(*arrays, None, slopes=slopes, absolute=True),
      ops.retention(*arrays, jnp.stack([slopes, slopes])),
      atol=2e-6,
  )


def test_weights_by_hand():
  """Zero queries, rate 1/2, three columns: (1, 1/2, 1/4) / (7/4) and so on."""
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


def test_gradients_by_finite_differences():
  with jax.enable_x64(True):
    maps = tuple(map(jnp.asarray, _maps(7, 3, 4, np.float64)))
    check_grads(
        jax.jit(lambda *a: ops.retention(*a, window=2, shift=1)),
        (*maps, jnp.log(jnp.asarray(RATES))),
        order=1,
    )


def test_float32_inside_whatever_the_dtype():
  """bfloat16 scores would be off by up to 2**-8 of 80: weights by 30 %."""
  maps = [jnp.asarray(m, jnp.bfloat16) for m in _maps(8)]
  query = maps[0] * 8
  log_decay = jnp.float32(np.log(RATES))
  actual = ops.retention(query, maps[1] * 4, maps[2], log_decay)
  assert actual.dtype == jnp.bfloat16
  wide = [m.astype(jnp.float32) for m in (query, maps[1] * 4, maps[2])]
  expected = ops.retention(*wide, log_decay)
  # Two passes, each rounding its weights and its result once: 4 * 2**-8 of
  # the largest value.
  bound = 4 * 2.0**-8 * float(jnp.abs(wide[2]).max())
  assert float(jnp.abs(actual.astype(jnp.float32) - expected).max()) < bound


@pytest.mark.parametrize('impl', ['banded', 'cyclic', 'blocked'])
def test_extreme_scores_and_rates_stay_finite(impl):
  maps = [jnp.asarray(m) * 300 for m in _maps(9)]
  theta = jnp.array([[40.0, -40.0, 0.0]] * 2)  # gamma near 1 and near 0

  def loss(theta, *maps):
    log_decay = jax.nn.log_sigmoid(theta)
    return ops.retention(*maps, log_decay, window=3, shift=1, impl=impl).sum()

  value, grads = jax.jit(jax.value_and_grad(loss, range(4)))(theta, *maps)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in grads)
