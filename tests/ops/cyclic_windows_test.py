"""Tests window sizes, masks and partition against the official Swin masks."""

import pathlib

import cyclic_windows as windows
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.ops import attention

# Computed with the official Swin code: the pairs that its masks allow.
_DATA = pathlib.Path(__file__).parents[1] / 'fixtures'
_OFFICIAL = np.load(_DATA / 'swin_masks.npz')
_CASES = (
    (8, 8, 4, 2),
    (14, 14, 7, 3),
    (12, 20, 4, 2),
    (8, 8, 4, 1),
    (14, 21, 7, 3),
)

extents = st.integers(1, 40)
sizes = st.integers(1, 12)


@pytest.mark.parametrize(
    ('extent', 'nominal', 'shift', 'expected'),
    [
        (56, 14, 7, (14, 7)),
        (15, 14, 7, (14, 7)),
        (14, 14, 7, (14, 0)),  # one window: a shift would cut it
        (3, 14, 7, (3, 0)),
        (9, 4, 3, (4, 2)),  # the shift is at most half the window
        (9, 5, 1, (5, 1)),
        (9, None, 0, (9, 0)),
    ],
)
def test_effective_window(extent, nominal, shift, expected):
  assert attention.effective_window(extent, nominal, shift) == expected


def test_window_index_by_hand():
  position = np.arange(10)
  np.testing.assert_array_equal(
      attention.window_index(position, 4, 0), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
  )
  # Shifted by 1: the first token alone, then blocks of four.
  np.testing.assert_array_equal(
      attention.window_index(position, 4, 1), [-1, 0, 0, 0, 0, 1, 1, 1, 1, 2]
  )


@pytest.mark.parametrize(('height', 'width', 'size', 'shift'), _CASES)
def test_both_axes_together_give_the_official_mask(height, width, size, shift):
  """A pair of tokens may attend if it may along both axes."""
  case = f'mask/H{height}_W{width}_M{size}_s{shift}'
  shape = _OFFICIAL[f'{case}/shape']
  official = np.unpackbits(_OFFICIAL[f'{case}/allowed'])[: np.prod(shape)]
  rows = windows.cyclic_mask(height, size, shift)
  columns = windows.cyclic_mask(width, size, shift)
  both = np.einsum('yij,xkl->yxikjl', rows, columns)
  np.testing.assert_array_equal(
      both.reshape(shape), official.reshape(shape).astype(bool)
  )


@hypothesis.given(extent=extents, nominal=sizes, data=st.data())
def test_cyclic_masks_allow_the_pairs_of_a_window(extent, nominal, data):
  shift = data.draw(st.integers(0, nominal - 1))
  size, shift = attention.effective_window(extent, nominal, shift)
  padded = -(-extent // size) * size
  original = (np.arange(padded) + shift) % padded
  allowed = np.zeros((padded, padded), bool)
  for index, mask in enumerate(windows.cyclic_mask(extent, size, shift)):
    token = original[index * size : (index + 1) * size]
    allowed[np.ix_(token, token)] = mask
  index = attention.window_index(np.arange(extent), size, shift)
  np.testing.assert_array_equal(
      allowed[:extent, :extent], index[:, None] == index[None]
  )
  assert not allowed[:, extent:].any()  # No key is padding.


@hypothesis.settings(max_examples=8, deadline=None)
@hypothesis.given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    data=st.data(),
)
def test_merge_undoes_partition(height, width, size, data):
  shift = tuple(data.draw(st.integers(0, m - 1)) for m in size)
  x = np.arange(2 * height * width * 3, dtype=np.float32)
  x = x.reshape(2, height, width, 3, 1)

  @jax.jit
  def there_and_back(x):
    cut = windows.partition(x, size, shift)
    return cut, windows.merge(cut, (height, width), shift)

  windows_of_x, merged = there_and_back(x)
  count = -(-height // size[0]), -(-width // size[1])
  assert windows_of_x.shape == (2, *count, *size, 3, 1)
  np.testing.assert_array_equal(merged, x)


def test_partition_by_hand():
  """A 2x3 map in 2x2 windows, shifted by (0, 1): columns 1 2 | pad 0."""
  x = jnp.array([[1, 2, 3], [4, 5, 6]]).reshape(1, 2, 3, 1, 1)
  cut = windows.partition(x, (2, 2), (0, 1))[..., 0, 0]
  want = [[2, 3], [5, 6]], [[0, 1], [0, 4]]
  np.testing.assert_array_equal(cut[0, 0], want)
