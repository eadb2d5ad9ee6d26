"""Tests rotations against complex numbers, rates and slopes by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import positions

B, H, W, N, D = 2, 3, 5, 4, 6


def _x(seed=0, shape=(B, H, W, N, D)):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _interleaved(x):
  return positions.rotate_interleaved(jnp.asarray(x), stride=7)


def _halves(x):
  return positions.rotate_halves(jnp.asarray(x))


def test_neighbouring_channels_turn_by_row_and_column():
  x = _x()
  position = np.arange(H)[:, None] * 7 + np.arange(W)[None, :]
  pairs = x[..., 0::2].astype(np.float64) + 1j * x[..., 1::2]
  angle = position[..., None] * np.array([1, 1e-2, 1e-4])
  turned = pairs * np.exp(1j * angle)[None, :, :, None]
  actual = _interleaved(x)
  np.testing.assert_allclose(actual[..., 0::2], turned.real, atol=1e-5)
  np.testing.assert_allclose(actual[..., 1::2], turned.imag, atol=1e-5)


def test_channels_half_a_head_apart_turn_by_the_sum_of_row_and_column():
  x = _x()
  position = np.arange(H)[:, None] + np.arange(W)[None, :]
  halves = x[..., :3].astype(np.float64) + 1j * x[..., 3:]
  angle = position[..., None] * 10000.0 ** (-np.arange(3) / 3)
  turned = halves * np.exp(1j * angle)[None, :, :, None]
  actual = _halves(x)
  np.testing.assert_allclose(actual[..., :3], turned.real, atol=1e-5)
  np.testing.assert_allclose(actual[..., 3:], turned.imag, atol=1e-5)


def test_large_positions_keep_their_precision():
  """At position 3135 a table computed in float32 would be off by 1e-4."""
  x = jnp.ones((1, 2, 1, 1, 4), jnp.float32)
  actual = positions.rotate_interleaved(x, stride=3135)[0, 1, 0, 0]
  expected = [
      np.cos(3135.0) - np.sin(3135.0),
      np.cos(3135.0) + np.sin(3135.0),
      np.cos(0.3135) - np.sin(0.3135),
      np.cos(0.3135) + np.sin(0.3135),
  ]
  np.testing.assert_allclose(actual, expected, atol=3e-7)


def test_bfloat16_is_rotated_in_float32():
  x = jnp.asarray(_x(), jnp.bfloat16)
  actual, expected = _halves(x), _halves(x.astype(jnp.float32))
  assert actual.dtype == jnp.bfloat16
  np.testing.assert_array_equal(actual, expected.astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ('spread', 'rates'),
    [(4.0, [3 / 4, 7 / 8, 15 / 16, 31 / 32]), (6.0, [3 / 4, 15 / 16, 63 / 64])],
)
def test_rates_do_not_reach_the_end_of_the_range(spread, rates):
  """Exponents are 2, 3, 4, 5, as released, not 6; and 2, 4, 6, not 8."""
  found = positions.decay_rates(len(rates), spread)
  np.testing.assert_allclose(found, rates, rtol=1e-15)


@pytest.mark.parametrize(
    'slopes', [[-0.5, 0.5, -0.25, 0.25], [-0.5, 0.5, -0.25, 0.25, 0], [0]]
)
def test_slopes_alternate_and_halve_and_an_odd_last_head_has_none(slopes):
  found = positions.balanced_slopes(len(slopes))
  np.testing.assert_array_equal(found, slopes)
