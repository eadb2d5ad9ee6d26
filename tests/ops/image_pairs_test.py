"""Tests swaps between neighbours in a batch against loops."""

import jax
import numpy as np
import pytest

from gswinrmt_jax.ops import image_pairs


def _order(count):
  return np.array([i ^ 1 if i ^ 1 < count else i for i in range(count)])


@pytest.mark.parametrize('count', [1, 4, 7])
def test_partner_is_the_neighbour(count):
  rows = np.arange(count, dtype=np.float32)[:, None] + np.float32([[0, 0.5]])
  swapped = jax.jit(image_pairs.partner)(rows)
  np.testing.assert_array_equal(swapped, rows[_order(count)])


@pytest.mark.parametrize('count', [4, 5])
def test_inside_of_the_box_is_the_partners(count):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(count, 2, 3, 7)).astype(np.float32)
  box = np.array([[False, True, True], [False, False, True]])
  swap_inside = jax.jit(image_pairs.swap_inside)
  mixed = np.asarray(swap_inside(x, box))
  for i, row, column in np.ndindex(count, 2, 3):
    source = _order(count)[i] if box[row, column] else i
    np.testing.assert_array_equal(mixed[i, row, column], x[source, row, column])
  # Swapping the same box again restores everything.
  np.testing.assert_array_equal(swap_inside(mixed, box), x)
