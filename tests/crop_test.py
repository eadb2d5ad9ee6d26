"""Random crop and flip, against NumPy's pad and slices."""

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.augment import crop

B, H, W = 7, 5, 8


_crop_and_flip = jax.jit(
    crop.crop_and_flip, static_argnames=('padding', 'flip')
)


def _image(b=B):
  rng = np.random.default_rng(0)
  return rng.integers(1, 256, (b, H, W, 3), dtype=np.uint8)


def test_shift_and_flip_matches_pad_and_slices():
  image = _image()
  down = np.array([0, -3, 2, 0, 0, 4, -4], np.int32)
  right = np.array([0, 0, 0, -2, 3, 4, -4], np.int32)
  mirrored = np.array([0, 0, 1, 0, 1, 1, 0], bool)
  out = jax.jit(crop.shift_and_flip)(image, down, right, mirrored)
  assert out.dtype == jnp.uint8
  padded = np.pad(image, ((0, 0), (4, 4), (4, 4), (0, 0)))
  for b in range(B):
    top, left = 4 + down[b], 4 + right[b]
    expected = padded[b, top : top + H, left : left + W]
    expected = expected[:, ::-1] if mirrored[b] else expected
    np.testing.assert_array_equal(out[b], expected, err_msg=str(b))


def test_all_windows_and_both_sides_are_equally_likely():
  """Nine windows, flipped or not: 18 outcomes of 1/18 each."""
  count = 3600
  image = jnp.asarray(np.repeat(_image(1), count, axis=0))
  out, _ = _crop_and_flip(jax.random.key(0), image, padding=1, flip=True)
  kinds, counts = np.unique(
      np.asarray(out).reshape(count, -1), axis=0, return_counts=True
  )
  assert len(kinds) == 18
  # Six deviations of a binomial count of 200.
  np.testing.assert_allclose(counts, 200, atol=6 * 13.7)


def test_off_and_parts():
  image, key = _image(40), jax.random.key(1)
  same, told = _crop_and_flip(key, image, padding=0, flip=False)
  np.testing.assert_array_equal(same, image)
  assert not told.any()
  flipped, told = _crop_and_flip(key, image, padding=0, flip=True)
  flipped = np.asarray(flipped)
  kept = (flipped == image).all(axis=(1, 2, 3))
  mirrored = (flipped == image[:, :, ::-1]).all(axis=(1, 2, 3))
  assert (kept | mirrored).all() and 5 < kept.sum() < 35
  np.testing.assert_array_equal(told, mirrored)
