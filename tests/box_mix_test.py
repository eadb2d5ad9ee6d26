"""Box mixing: what is drawn, and the targets."""

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.augment import box_mix


def test_boxes_have_the_sizes_and_places_of_lambda():
  """7 rows, 9 columns: sides int(7 r), int(9 r) made even, r^2 ~ U(0, 1)."""
  keys = jax.random.split(jax.random.key(0), 2000)
  boxes = np.asarray(
      jax.jit(jax.vmap(lambda key: box_mix.draw_box(key, height=7, width=9)))(
          keys
      )
  )
  assert boxes.shape == (2000, 7, 9)
  rows, columns = boxes.any(axis=2), boxes.any(axis=1)
  np.testing.assert_array_equal(boxes, rows[:, :, None] & columns[:, None])
  # Mean and mean square of the share that is swapped, in loops over lambda and
  # the centres.
  steps, expected = 2000, np.zeros(2)
  for step in range(steps):
    ratio = np.sqrt((step + 0.5) / steps)  # 1 - lambda is as uniform as lambda
    moments = np.ones(2)
    for side in (7, 9):
      half = int(side * ratio) // 2
      for power in (1, 2):
        covered = [
            ((min(c + half, side) - max(c - half, 0)) / side) ** power
            for c in range(side)
        ]
        moments[power - 1] *= np.mean(covered)
    expected += moments / steps
  share = boxes.mean((1, 2))
  found = [share.mean(), (share**2).mean()]
  # Two deviations of the mean of 2000, with one key.
  np.testing.assert_allclose(found, expected, atol=2 * share.std() / 2000**0.5)
  # Both ends are reached.
  assert boxes[:, 0, 0].any() and boxes[:, -1, -1].any()


def test_targets_by_hand():
  """Three of twelve tokens are the neighbour's."""
  box = jnp.zeros((3, 4), bool).at[1, 1:].set(True)
  target = jnp.array([[1.0, 0.0], [0.2, 0.8], [0.5, 0.5]])
  mixed = box_mix.mix_targets(target, box)
  expected = [
      [0.75 * 1.0 + 0.25 * 0.2, 0.25 * 0.8],
      [0.75 * 0.2 + 0.25 * 1.0, 0.75 * 0.8],
      [0.5, 0.5],  # the last of an odd batch has no neighbour
  ]
  np.testing.assert_allclose(mixed, expected, rtol=1e-6)
