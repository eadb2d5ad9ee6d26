"""Tests the crop and flip of label maps against float64 loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.augment import token_labels

B, S, T, M, K = 3, 5, 4, 2, 7
EXTENTS = (3, 2)
# Top, left, height, width; the last box lies in a corner.
BOX = np.array(
    [[0, 0, 1, 1], [0.1, 0.35, 0.6, 0.5], [0.7, 0.75, 0.3, 0.25]], np.float32
)
FLIPPED = np.array([True, True, False])


def _sparse():
  rng = np.random.default_rng(0)
  index = np.argsort(rng.random((B, S, T, K)), axis=-1)[..., :M]
  score = rng.dirichlet(np.ones(M + 1), (B, S, T))[..., :M]
  return index.astype(np.uint16), score.astype(np.float16)


def _spread(index, score):
  """Spreads the stored scores over all classes, one class at a time."""
  whole = np.zeros((B, S, T, K))
  for b, s, t in np.ndindex(B, S, T):
    named = score[b, s, t].astype(np.float64)
    for m in range(M):
      whole[b, s, t, index[b, s, t, m]] += named[m]
    whole[b, s, t] += (1 - named.sum()) / K
  return whole


def _at(plane, y, x):
  """Interpolates between cell centres; repeats the border outside them."""
  y = min(max(y, 0), plane.shape[0] - 1)
  x = min(max(x, 0), plane.shape[1] - 1)
  top, left = int(y), int(x)
  below, right = min(top + 1, S - 1), min(left + 1, T - 1)
  upper = (1 - x + left) * plane[top, left] + (x - left) * plane[top, right]
  lower = (1 - x + left) * plane[below, left] + (x - left) * plane[below, right]
  return (1 - y + top) * upper + (y - top) * lower


def _roi_align(whole, box, flipped, extents):
  """Averages evenly spaced points in each cell of the crop."""
  out = np.zeros((B, *extents, K))
  down, across = -(-S // extents[0]), -(-T // extents[1])
  for b, i, j in np.ndindex(B, *extents):
    top, left, height, width = (float(number) for number in box[b])
    for p, q in np.ndindex(down, across):
      y = S * (top + height / extents[0] * (i + (p + 0.5) / down)) - 0.5
      x = T * (left + width / extents[1] * (j + (q + 0.5) / across)) - 0.5
      out[b, i, j] += _at(whole[b], y, x) / (down * across)
    if flipped[b] and j == extents[1] - 1:
      out[b, i] = out[b, i, ::-1]
  return out


def test_spread_against_loops():
  index, score = _sparse()
  whole = jax.jit(functools.partial(token_labels.spread, num_classes=K))(
      index, score
  )
  assert whole.dtype == jnp.float32
  np.testing.assert_allclose(whole, _spread(index, score), atol=1e-6)
  np.testing.assert_allclose(whole.sum(-1), 1, rtol=1e-6)


def test_scores_that_sum_to_more_than_one_are_brought_down_to_it():
  """A sum of 1.01 is the most that `token_labels.write` allows."""
  score = jnp.array([[[[0.505, 0.505]], [[0.8, 0.1]]]], jnp.float16)
  index = jnp.array([[[[0, 2]], [[0, 2]]]], jnp.uint16)
  whole = token_labels.spread(index, score, num_classes=4)
  expected = [[[[0.5, 0, 0.5, 0]], [[0.825, 0.025, 0.125, 0.025]]]]
  np.testing.assert_allclose(whole, expected, atol=2e-4)
  np.testing.assert_allclose(whole.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize('extents', [EXTENTS, (1, 1), (6, 9)])
def test_align_against_loops(extents):
  """With fewer cells than the whole map, one cell, and more."""
  whole = _spread(*_sparse())
  out = jax.jit(functools.partial(token_labels.align, extents=extents))(
      whole.astype(np.float32), BOX, FLIPPED
  )
  expected = _roi_align(whole, BOX, FLIPPED, extents)
  np.testing.assert_allclose(out, expected, atol=2e-6)
  np.testing.assert_allclose(out.sum(-1), 1, rtol=1e-5)


def test_targets_are_smoothed():
  """0.9 p + 0.1 / 7, for each token and for the crop as a whole."""
  whole = _spread(*_sparse()).astype(np.float32)
  image, tokens = jax.jit(
      functools.partial(token_labels.targets, extents=EXTENTS, smoothing=0.1)
  )(whole, BOX, FLIPPED)
  for found, extents in ((tokens, EXTENTS), (image[:, None, None], (1, 1))):
    expected = 0.9 * _roi_align(whole, BOX, FLIPPED, extents) + 0.1 / K
    np.testing.assert_allclose(found, expected, atol=2e-6)
