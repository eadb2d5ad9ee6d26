"""SWAT against loops in float64 and by hand."""

import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import loops
import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.ops import decay, rotary

B, H, W, N, D = 2, 5, 7, 3, 4
RATES = np.array([[0.5, 0.8, 0.95], [0.6, 0.7, 0.9]])  # width, height
SLOPES = decay.balanced_slopes(N)
ROTATION = rotary.split_half(D)


def _maps(seed, height=H, width=W, dtype=np.float32):
  rng = np.random.default_rng(seed)
  return tuple(
      rng.normal(size=(B, height, width, N, D)).astype(dtype) for _ in range(3)
  )


def _rotated(x):
  """Split-half rotation of a line `[l, d]` by its own index, by hand."""
  half = x.shape[-1] // 2
  angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(half) / half)
  pairs = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
  return np.concatenate([pairs.real, pairs.imag], axis=-1)


def _expected(maps, window, shift, *, scale=1.0, rotated=True):
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


@pytest.mark.parametrize('impl', ['banded', 'cyclic', 'blocked'])
@pytest.mark.parametrize(
    ('window', 'shift'), [(None, 0), (3, 0), (3, 1), (4, 2)]
)
def test_matches_loops(window, shift, impl):
  maps = _maps(0)
  actual = ops.swat(
      *map(jnp.asarray, maps),
      *_tables(),
      window=window,
      shift=shift,
      impl=impl,
      rotation=ROTATION,
  )
  np.testing.assert_allclose(actual, _expected(maps, window, shift), atol=2e-6)


def test_switches_match_loops():
  maps = _maps(1)
  arrays = [jnp.asarray(m) for m in maps]
  np.testing.assert_allclose(
      ops.swat(*arrays, *_tables(), window=3, scaled=True, rotation=ROTATION),
      _expected(maps, 3, 0, scale=D**-0.5),
      atol=2e-6,
  )
  np.testing.assert_allclose(
      ops.swat(*arrays, *_tables(), window=3),
      _expected(maps, 3, 0, rotated=False),
      atol=2e-6,
  )


def _weights(log_decay, slopes, length, window=None, shift=0, **switches):
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


def test_weights_by_hand():
  """Zero queries, rate 1/2, no slope: 1/2 / 3 * 2**-|i - j|."""
  weights = _weights(jnp.full((2, 1), np.log(0.5)), None, 3)
  np.testing.assert_allclose(
      weights * 6,
      [[1, 1 / 2, 1 / 4], [1 / 2, 1, 1 / 2], [1 / 4, 1 / 2, 1]],
      rtol=1e-6,
  )


def test_a_positive_slope_prefers_keys_on_the_left():
  """sigmoid(slope (i - j)): with slope ln 3, 3/4 one to the left, 1/4 right."""
  slope = jnp.array([np.log(3.0)], jnp.float32)
  weights = _weights(None, slope, 2)
  np.testing.assert_allclose(
      weights * 2, [[1 / 2, 1 / 4], [3 / 4, 1 / 2]], rtol=1e-6
  )
  absolute = _weights(None, slope, 2, absolute=True)
  np.testing.assert_allclose(
      absolute * 2, [[1 / 2, 3 / 4], [3 / 4, 1 / 2]], rtol=1e-6
  )


@pytest.mark.parametrize('impl', ['banded', 'cyclic', 'blocked'])
def test_partial_regions_divide_by_the_whole_window(impl):
  """Five columns, window 4, shift 2: regions of 2 and 3, all over 4."""
  weights = _weights(None, None, 5, window=4, shift=2, impl=impl)
  expected = np.zeros((5, 5))
  expected[:2, :2] = expected[2:, 2:] = 1 / 8
  np.testing.assert_array_equal(weights, expected)


def test_gradients_by_finite_differences():
  with jax.enable_x64(True):
    maps = tuple(map(jnp.asarray, _maps(3, 3, 4, np.float64)))
    check_grads(
        jax.jit(lambda *a: ops.swat(*a, window=2, shift=1, rotation=ROTATION)),
        (*maps, jnp.log(jnp.asarray(RATES)), jnp.asarray(SLOPES)),
        order=1,
    )


def test_extreme_scores_and_rates_stay_finite():
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
        rotation=ROTATION,
    ).sum()

  value, grads = jax.jit(jax.value_and_grad(loss, range(4)))(theta, *maps)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in grads)
