"""Cutting one axis into windows, and products of windows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import blocked, rotary

H, W = 3, 5


def _positions():
  """A map of one head whose two channels are its row and column, from 1."""
  rows, columns = np.indices((H, W)) + 1.0
  return jnp.asarray(np.stack([rows, columns], -1)[None, :, :, None])


def test_rows_in_windows():
  """Five columns in windows of 2, shifted by 1: padded by one, rolled."""
  windows = blocked.blocks(_positions(), 0, 2, 1)
  assert windows.shape == (1, 3, 3, 1, 2, 2)
  for row in windows[0, :, :, 0, :, 1]:
    np.testing.assert_array_equal(row, [[2, 3], [4, 5], [0, 1]])
  np.testing.assert_array_equal(windows[0, :, 0, 0, 0, 0], [1, 2, 3])


def test_columns_in_windows():
  windows = blocked.blocks(_positions(), 1, 2, 0)
  assert windows.shape == (1, 5, 2, 1, 2, 2)
  for column in windows[0, :, :, 0, :, 0]:
    np.testing.assert_array_equal(column, [[1, 2], [3, 0]])
  np.testing.assert_array_equal(windows[0, :, 0, 0, 0, 1], np.arange(1.0, 6.0))


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize(('window', 'shift'), [(2, 0), (2, 1), (4, 2)])
def test_unblock_undoes_blocks(axis, window, shift):
  x = _positions()
  windows = blocked.blocks(x, axis, window, shift)
  np.testing.assert_array_equal(
      blocked.unblock(windows, axis, (H, W), shift), x
  )


def test_masks_are_in_the_order_of_the_windows():
  """A pair may attend where neither its block nor padding forbids it."""
  assert blocked.mask(0, (3, 4), 2, 0) is None
  wide = blocked.mask(0, (3, 5), 2, 0)[0, 0, :, 0]
  assert wide.shape == (3, 2, 2)
  # Window 2 of each row has column 5 and padding, which no one reads.
  assert wide[:2].all()
  np.testing.assert_array_equal(wide[2], [[True, False]] * 2)
  high = blocked.mask(1, (3, 5), 2, 0)[0, 0, :, 0]
  assert high.shape == (2, 2, 2) and high[0].all()
  np.testing.assert_array_equal(high[1], [[True, False]] * 2)


def test_scores_and_mix():
  query = jnp.array([[1.0, 2.0], [3.0, 4.0]])[None, None, None, None]
  key = jnp.array([[1.0, 0.0], [0.0, -1.0]])[None, None, None, None]
  scores = blocked.scores(query, key)[0, 0, 0, 0]
  np.testing.assert_array_equal(scores, [[1, -2], [3, -4]])
  mixed = blocked.mix(
      jnp.array([[1.0, 2.0], [0.0, 3.0]])[None, None, None, None], query
  )
  np.testing.assert_array_equal(mixed[0, 0, 0, 0], [[7, 10], [9, 12]])


@pytest.mark.parametrize('along', [0, 1])
@pytest.mark.parametrize('axis', [-1, -2])
def test_scores_of_rotated_tokens(axis, along):
  """Neighbours and halves, along rows and columns: values and gradients."""
  rotation = rotary.Rotation((1.0, 0.3, 0.07), (2, 5), axis)
  rng = np.random.default_rng(0)
  window = (W, H)[along]
  weights = rng.normal(size=(2, (H, W)[along], 4, window, window))

  def scores(turned, query, key):
    turn = None
    if turned:
      query, key = (rotary.rotate(x, rotation=rotation) for x in (query, key))
    else:
      turn = rotary.between(rotation, along, window)
    query, key = (blocked.blocks(x, along, window, 0) for x in (query, key))
    return blocked.scores(query, key, turn)

  with jax.enable_x64(True):
    query, key = jnp.asarray(rng.normal(size=(2, 2, H, W, 4, 6)))
    found = []
    for turned in (False, True):
      function = functools.partial(scores, turned)
      out, pull = jax.vjp(function, query, key)
      found.append((out, *pull(jnp.asarray(weights))))
    plain = blocked.scores(
        *(blocked.blocks(x, along, window, 0) for x in (query, key))
    )
  for actual, expected in zip(*found, strict=True):
    np.testing.assert_allclose(actual, expected, atol=1e-13)
  assert np.abs(plain - found[0][0]).max() > 0.1
