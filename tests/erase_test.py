"""Random Erasing: the distribution of its boxes, and what they do."""

import math
import random

import jax
import numpy as np

from gswinrmt_jax.augment import erase

H, W = 24, 40


def _boxes_by_loops(count):
  """Draws boxes one by one: the procedure of timm, with Python's generator."""
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
  boxes = jax.jit(lambda key: erase.random_box(key, count, height=H, width=W))(
      jax.random.key(0)
  )
  drawn, loops = np.asarray(boxes), _boxes_by_loops(count)
  names = ('top', 'left', 'tall', 'wide')
  for name, a, b in zip(names, drawn, loops, strict=True):
    # Five deviations of the difference of two means.
    slack = 5 * math.sqrt(2 / count) * b.std()
    assert abs(a.mean() - b.mean()) < slack, name
    np.testing.assert_allclose(a.std(), b.std(), rtol=0.05, err_msg=name)
    for quantile in (0.1, 0.5, 0.9):
      low, high = np.quantile(b, [quantile - 0.02, quantile + 0.02])
      assert low <= np.quantile(a, quantile) <= high, name
  top, left, tall, wide = drawn
  assert (top >= 0).all() and (left >= 0).all()
  assert (top + tall <= H).all() and (left + wide <= W).all()
  # Both the first and the last places are reached.
  assert (
      (top == 0).any() and (top + tall == H).any() and (left + wide == W).any()
  )


def test_areas_and_aspects_stay_in_range():
  """On an image so large that rounding to pixels does not show."""
  boxes = jax.jit(
      lambda key: erase.random_box(key, 5000, height=2000, width=3000)
  )(jax.random.key(1))
  _, _, tall, wide = np.asarray(boxes).astype(float)
  area, aspect = tall * wide / 6e6, tall / wide
  assert 0.0199 < area.min() < 0.022 and 0.33 < area.max() < 0.334
  assert 0.299 < aspect.min() < 0.31 and 3.2 < aspect.max() < 3.34
  np.testing.assert_allclose(area.mean(), (0.02 + 1 / 3) / 2, atol=0.01)


def test_erase_fills_boxes_with_noise():
  count, prob = 1500, 0.25
  image = np.full((count, H, W, 3), 7.0, np.float32)
  out = np.asarray(
      jax.jit(lambda key, image: erase.random_erase(key, image, prob=prob))(
          jax.random.key(2), image
      )
  )
  hit = (out != 7).all(axis=-1)
  np.testing.assert_array_equal(hit, (out != 7).any(axis=-1))
  share = hit.mean(axis=(1, 2))
  # Five deviations of a binomial share.
  np.testing.assert_allclose((share > 0).mean(), prob, atol=5 * 0.0112)
  assert share.max() < 0.37
  for mask in hit[share > 0][:50]:
    rows, columns = mask.any(axis=1), mask.any(axis=0)
    np.testing.assert_array_equal(mask, rows[:, None] & columns)
    assert np.ptp(np.flatnonzero(rows)) + 1 == rows.sum()
    assert np.ptp(np.flatnonzero(columns)) + 1 == columns.sum()
  noise = out[hit]
  np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.02)
  np.testing.assert_allclose(np.cov(noise.T), np.eye(3), atol=0.02)


def test_off():
  image = jax.numpy.ones((2, H, W, 3))
  assert erase.random_erase(jax.random.key(0), image, prob=0.0) is image
