"""Both rotary forms, against complex multiplication in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import backend, rotary

B, H, W, N, D = 2, 3, 5, 4, 6


def _x(seed=0, shape=(B, H, W, N, D)):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_interleaved_frequencies_include_the_end_point():
  np.testing.assert_allclose(
      rotary.interleaved_frequencies(6), [1, 1e-2, 1e-4], rtol=1e-12
  )


def test_split_half_frequencies_do_not():
  np.testing.assert_allclose(
      rotary.split_half_frequencies(4), [1, 1e-2], rtol=1e-12
  )


def _interleaved(x, strides):
  """Rotated as pairs of neighbours are, by way of the other order."""
  with backend.tracing_for('cpu'):
    rotation = rotary.interleaved(x.shape[-1], strides[1])
    rotation = rotation._replace(strides=strides)
    ordered = rotary.arranged(x.reshape(*x.shape[:3], -1), x.shape[3])
    turned = np.asarray(
        rotary.rotate(ordered.reshape(x.shape), rotation=rotation)
    )
  even, odd = np.split(turned, 2, axis=-1)
  return np.stack([even, odd], axis=-1).reshape(x.shape)


def _interleaved_for_gpu(x, strides):
  with backend.tracing_for('gpu'):
    assert rotary.arranged(x, N) is x
    rotation = rotary.interleaved(x.shape[-1], strides[1])
    return rotary.rotate(x, rotation=rotation._replace(strides=strides))


def _split_half(x, strides):
  rotation = rotary.split_half(x.shape[-1])
  return rotary.rotate(x, rotation=rotation._replace(strides=strides))


def test_positions():
  """By row and column of the window, and along each axis."""
  assert rotary.interleaved(4, 7).strides == (1, 7)
  assert rotary.split_half(4).strides == (1, 1)


@pytest.mark.parametrize('rotate', [_interleaved, _interleaved_for_gpu])
def test_neighbouring_channels_are_turned(rotate):
  x = _x()
  position = np.arange(H)[:, None] * 7 + np.arange(W)[None, :]
  pairs = x[..., 0::2].astype(np.float64) + 1j * x[..., 1::2]
  angle = position[..., None] * np.array([1, 1e-2, 1e-4])
  turned = pairs * np.exp(1j * angle)[None, :, :, None]
  actual = rotate(jnp.asarray(x), (1, 7))
  np.testing.assert_allclose(actual[..., 0::2], turned.real, atol=1e-5)
  np.testing.assert_allclose(actual[..., 1::2], turned.imag, atol=1e-5)


def test_evens_come_first_in_each_head():
  channels = jnp.arange(12.0)[None]
  with backend.tracing_for('cpu'):
    ordered = rotary.arranged(channels, 2)[0]
  np.testing.assert_array_equal(ordered, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11])


def test_split_half_turns_channels_half_a_head_apart():
  x = _x()
  position = np.arange(W)[None, :] * 2
  halves = x[..., :3].astype(np.float64) + 1j * x[..., 3:]
  angle = position[..., None] * 10000.0 ** (-np.arange(3) / 3)
  turned = halves * np.exp(1j * angle)[None, :, :, None]
  actual = _split_half(jnp.asarray(x), (2, 0))
  np.testing.assert_allclose(actual[..., :3], turned.real, atol=1e-5)
  np.testing.assert_allclose(actual[..., 3:], turned.imag, atol=1e-5)


@pytest.mark.parametrize(
    'rotate', [_interleaved, _interleaved_for_gpu, _split_half]
)
def test_scores_depend_on_differences_of_position_only(rotate):
  """Those along a row are the same in every row, and those along a column."""
  query, key = (jnp.broadcast_to(_x(i)[:, :1, :1], _x().shape) for i in (1, 2))

  def scores(equation):
    q, k = rotate(query, (2, 5)), rotate(key, (2, 5))
    return np.asarray(jnp.einsum(equation, q, k))

  for across in scores('bhwnd,bhWnd->hbnwW'), scores('bhwnd,bHwnd->wbnhH'):
    np.testing.assert_allclose(
        across, across[:1].repeat(len(across), 0), atol=1e-4
    )
    np.testing.assert_allclose(
        across[..., :-1, :-1], across[..., 1:, 1:], atol=1e-4
    )
    assert np.ptp(across[0, 0, 0, 0]) > 0.1


def test_large_positions_keep_their_precision():
  """At position 3135 a table made in float32 would be off by 1e-4."""
  x = jnp.ones((1, 2, 1, 1, 4), jnp.float32)
  with backend.tracing_for('cpu'):
    rotation = rotary.interleaved(4, 3135)
    actual = rotary.rotate(x, rotation=rotation)[0, 1, 0, 0]
  expected = [
      np.cos(3135.0) - np.sin(3135.0),
      np.cos(0.3135) - np.sin(0.3135),
      np.cos(3135.0) + np.sin(3135.0),
      np.cos(0.3135) + np.sin(0.3135),
  ]
  np.testing.assert_allclose(actual, expected, atol=3e-7)


def test_bfloat16_is_rotated_in_float32():
  x = jnp.asarray(_x(), jnp.bfloat16)
  actual = _split_half(x, (17, 100))
  expected = _split_half(x.astype(jnp.float32), (17, 100))
  assert actual.dtype == jnp.bfloat16
  np.testing.assert_array_equal(actual, expected.astype(jnp.bfloat16))


@pytest.mark.parametrize(
    'frequencies',
    [rotary.interleaved_frequencies, rotary.split_half_frequencies],
)
def test_an_odd_head_is_refused(frequencies):
  with pytest.raises(ValueError, match='a head has 3'):
    frequencies(3)
