"""What the forms over all pairs of tokens share."""

import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.ops import all_pairs


def test_manhattan_by_hand():
  """Two rows of three, counted row by row: token 3 is below token 0."""
  np.testing.assert_array_equal(
      all_pairs.manhattan(2, 3),
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
  """An asymmetric form, so that query and key cannot change places."""
  rng = np.random.default_rng(0)
  query, key, value = (rng.normal(size=(2, 3, 5, 2, 4)) for _ in range(3))
  expected = np.zeros_like(value)
  for b, h, w, n in np.ndindex(query.shape[:4]):
    for row, column in np.ndindex(3, 5):
      score = query[b, h, w, n] @ key[b, row, column, n]
      weight = score * (1 + n) + 0.1 * (h * 5 + w)
      expected[b, h, w, n] += weight * value[b, row, column, n]

  def weigh(scores):
    assert scores.shape == (2, 2, 15, 15)
    head = jnp.arange(1, 3)[None, :, None, None]
    return scores * head + 0.1 * jnp.arange(15)[None, None, :, None]

  actual = all_pairs.all_pairs_attention(
      *(jnp.asarray(x, jnp.float32) for x in (query, key, value)), weigh
  )
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
