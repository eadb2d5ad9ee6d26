"""Tests random crop, flip and erasing, and their draws, against loops."""

import math
import random

import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.augment import batch, rand_augment, random_erasing

H, W = 24, 40
BOX = {'area': (0.02, 1 / 3), 'aspect': (0.3, 1 / 0.3)}
LARGEST = 1 - 2.0**-23  # of jax.random.uniform, float32


def test_normal_is_the_quantile_function():
  uniform = jnp.array([0.022750132, 0.158655254, 0.5, 0.841344746, 0.977249868])
  np.testing.assert_allclose(
      rand_augment.normal(uniform), [-2, -1, 0, 1, 2], atol=2e-6
  )


def test_normal_is_finite_and_symmetric_at_the_ends():
  low, high = rand_augment.normal(jnp.array([0.0, LARGEST], jnp.float32))
  assert 5 < high < 5.5
  np.testing.assert_allclose(low, -high, rtol=1e-3)


_crop_and_flip = jax.jit(
    batch.crop_and_flip, static_argnames=('padding', 'flip')
)


def _image(b=7):
  rng = np.random.default_rng(0)
  return rng.integers(1, 256, (b, 5, 8, 3), dtype=np.uint8)


def test_shift_and_flip_matches_pad_and_slices():
  image = _image()
  down = np.array([0, -3, 2, 0, 0, 4, -4], np.int32)
  right = np.array([0, 0, 0, -2, 3, 4, -4], np.int32)
  flipped = np.array([0, 0, 1, 0, 1, 1, 0], bool)
  out = jax.jit(batch.shift_and_flip)(image, down, right, flipped)
  assert out.dtype == jnp.uint8
  padded = np.pad(image, ((0, 0), (4, 4), (4, 4), (0, 0)))
  for b in range(7):
    top, left = 4 + down[b], 4 + right[b]
    expected = padded[b, top : top + 5, left : left + 8]
    expected = expected[:, ::-1] if flipped[b] else expected
    np.testing.assert_array_equal(out[b], expected, err_msg=str(b))


def test_all_windows_and_both_sides_are_equally_likely():
  """Nine windows, flipped or not: 18 outcomes of probability 1/18."""
  count = 3600
  image = jnp.asarray(np.repeat(_image(1), count, axis=0))
  out, _ = _crop_and_flip(jax.random.key(0), image, padding=1, flip=True)
  kinds, counts = np.unique(
      np.asarray(out).reshape(count, -1), axis=0, return_counts=True
  )
  assert len(kinds) == 18
  # Six standard deviations of a binomial count with mean 200.
  np.testing.assert_allclose(counts, 200, atol=6 * 13.7)


def test_off_and_parts():
  image, key = _image(40), jax.random.key(1)
  same, told = _crop_and_flip(key, image, padding=0, flip=False)
  np.testing.assert_array_equal(same, image)
  assert not told.any()
  flipped, told = _crop_and_flip(key, image, padding=0, flip=True)
  flipped = np.asarray(flipped)
  kept = (flipped == image).all(axis=(1, 2, 3))
  flipped = (flipped == image[:, :, ::-1]).all(axis=(1, 2, 3))
  assert (kept | flipped).all() and 5 < kept.sum() < 35
  np.testing.assert_array_equal(told, flipped)


def _boxes_by_loops(count):
  """Draws boxes one by one as timm does, with Python's generator."""
  rng = random.Random(0)
  boxes = []
  for _ in range(count):
    box = (0, 0, 0, 0)
    for _ in range(10):
      area = rng.uniform(0.02, 1 / 3) * H * W
      aspect = math.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3)))
      tall, wide = round(math.sqrt(area * aspect)), round(
          math.sqrt(area / aspect)
      )
      if tall < H and wide < W:
        box = (rng.randint(0, H - tall), rng.randint(0, W - wide), tall, wide)
        break
    boxes.append(box)
  return np.array(boxes).T


def test_boxes_have_the_distribution_of_the_loops():
  count = 20_000
  boxes = jax.jit(
      lambda key: random_erasing.random_box(
          key, count, height=H, width=W, **BOX
      )
  )(jax.random.key(0))
  drawn, loops = np.asarray(boxes), _boxes_by_loops(count)
  names = ('top', 'left', 'tall', 'wide')
  for name, a, b in zip(names, drawn, loops, strict=True):
    # Five standard deviations of the difference of two means.
    slack = 5 * math.sqrt(2 / count) * b.std()
    assert abs(a.mean() - b.mean()) < slack, name
    np.testing.assert_allclose(a.std(), b.std(), rtol=0.05, err_msg=name)
    for quantile in (0.1, 0.5, 0.9):
      low, high = np.quantile(b, [quantile - 0.02, quantile + 0.02])
      assert low <= np.quantile(a, quantile) <= high, name
  top, left, tall, wide = drawn
  assert (top >= 0).all() and (left >= 0).all()
  assert (top + tall <= H).all() and (left + wide <= W).all()
  # Boxes reach the first and the last positions.
  assert (
      (top == 0).any() and (top + tall == H).any() and (left + wide == W).any()
  )


def test_erase_fills_boxes_with_noise():
  count, prob = 1500, 0.25
  image = np.full((count, H, W, 3), 7.0, np.float32)
  out = np.asarray(
      jax.jit(
          lambda key, image: random_erasing.random_erase(
              key, image, prob=prob, fill='noise', **BOX
          )
      )(jax.random.key(2), image)
  )
  hit = (out != 7).all(axis=-1)
  np.testing.assert_array_equal(hit, (out != 7).any(axis=-1))
  share = hit.mean(axis=(1, 2))
  # Five standard deviations of a binomial share.
  np.testing.assert_allclose((share > 0).mean(), prob, atol=5 * 0.0112)
  # The coin does not depend on the area: large ones are erased, too.
  assert 0.3 < share.max() < 0.37
  for mask in hit[share > 0][:50]:
    rows, columns = mask.any(axis=1), mask.any(axis=0)
    np.testing.assert_array_equal(mask, rows[:, None] & columns)
    assert np.ptp(np.flatnonzero(rows)) + 1 == rows.sum()
    assert np.ptp(np.flatnonzero(columns)) + 1 == columns.sum()
  noise = out[hit]
  np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.02)
  np.testing.assert_allclose(np.cov(noise.T), np.eye(3), atol=0.02)


def test_erase_with_zeros_has_the_boxes_of_noise():
  image = jnp.full((60, H, W, 3), 7.0)

  @jax.jit
  def erase(key):
    return [
        random_erasing.random_erase(key, image, prob=0.5, fill=fill, **BOX)
        for fill in ('noise', 'zeros')
    ]

  noise, zeros = map(np.asarray, erase(jax.random.key(2)))
  np.testing.assert_array_equal(zeros, np.where(noise == 7, 7, 0))
  assert 0 < (zeros == 0).mean() < 0.5
