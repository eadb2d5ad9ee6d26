"""Tables of grey levels, against Pillow to the integer."""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageOps
import pytest

from gswinrmt_jax.augment import lut, pixels

H, W = 11, 19


def _images():
  """Noise of many ranges, and channels of one, two and a few levels."""
  rng = np.random.default_rng(0)
  images = []
  for low, high in [(0, 256), (0, 255), (37, 201), (100, 117), (5, 90)]:
    images.append(rng.integers(low, high, (H, W, 3)))
  images.append(np.clip(rng.normal(90, 30, (H, W, 3)), 0, 255))
  images.append(np.full((H, W, 3), (0, 77, 255)))  # one level
  images.append(rng.choice([3, 250], (H, W, 3)))
  images.append(rng.choice([0, 255], (H, W, 3), p=[0.02, 0.98]))
  images.append(rng.choice([10, 20, 30], (H, W, 3), p=[0.9, 0.05, 0.05]))
  return np.stack(images).astype(np.uint8)


def _large_images():
  """More pixels than 255 times the brightest: `step` exceeds 1."""
  rng = np.random.default_rng(1)
  noise = rng.normal(120, 40, (3, 64, 81, 3))
  noise[1, :50] = 13
  noise[2, :60] = 255
  return np.clip(noise, 0, 255).astype(np.uint8)


def _apply(make, images, *args):
  def looked_up(images, *args):
    counts = lut.histogram(images)
    table = jnp.broadcast_to(make(counts, *args), counts.shape)
    return pixels.unpack(lut.apply_table(pixels.pack(images), table))

  return np.asarray(jax.jit(looked_up)(jnp.asarray(images), *args))


def _assert_same(actual, images, oracle):
  for i, image in enumerate(images):
    expected = np.asarray(oracle(Image.fromarray(image)))
    np.testing.assert_array_equal(actual[i], expected, err_msg=f'image {i}')


def test_histogram_counts():
  images = _images()
  counts = np.asarray(jax.jit(lut.histogram)(images))
  for b, c in np.ndindex(len(images), 3):
    expected = np.bincount(images[b, ..., c].ravel(), minlength=256)
    np.testing.assert_array_equal(counts[b, :, c], expected)


@pytest.mark.parametrize('images', [_images(), _large_images()])
def test_autocontrast(images):
  actual = _apply(lut.autocontrast_table, images)
  _assert_same(actual, images, ImageOps.autocontrast)


def test_autocontrast_of_every_range():
  """Pillow's own expression in float64, for all 32,640 pairs of lo and hi."""
  low, high = np.triu_indices(256, 1)
  counts = np.zeros((len(low), 256), np.int32)
  counts[np.arange(len(low)), low] = 1
  counts[np.arange(len(low)), high] = 1
  actual = jax.jit(lut.autocontrast_table)(jnp.asarray(counts[:, :, None]))
  level = np.arange(256)
  scale = (255.0 / (high - low))[:, None]
  expected = (level * scale + -low[:, None] * scale).astype(int)
  occurs = (level >= low[:, None]) & (level <= high[:, None])
  np.testing.assert_array_equal(
      np.asarray(actual)[..., 0][occurs], expected[occurs]
  )
  exact = (level - low[:, None]) * 255 // (high - low)[:, None]
  assert (expected != exact)[occurs].sum() == 12094  # the corrected ones


@pytest.mark.parametrize('images', [_images(), _large_images()])
def test_equalize(images):
  actual = _apply(lut.equalize_table, images)
  _assert_same(actual, images, ImageOps.equalize)
  # 209 pixels are too few: 209 // 255 is 0, and that is the identity.
  assert (actual != images).any() == (images.shape[1] > H)


def test_invert():
  images = _images()
  actual = _apply(lambda counts: lut.invert_table(), images)
  _assert_same(actual, images, ImageOps.invert)


def test_posterize():
  images = _images()
  bits = np.arange(len(images)) % 8 + 1
  actual = _apply(
      lambda counts, bits: lut.posterize_table(bits),
      images,
      jnp.asarray(bits, jnp.int32),
  )
  for i in range(len(images)):
    expected = ImageOps.posterize(Image.fromarray(images[i]), int(bits[i]))
    np.testing.assert_array_equal(actual[i], expected)


def test_posterize_to_no_bits_is_black():
  """Black, as Pillow once made it; now it refuses to keep 0 bits."""
  table = lut.posterize_table(jnp.array([0, 1], jnp.int32))
  np.testing.assert_array_equal(table[0, :, 0], 0)
  np.testing.assert_array_equal(np.unique(table[1]), [0, 128])


def test_solarize():
  images = _images()
  threshold = np.array([0, 1, 26, 100, 128, 200, 255, 256, 50, 77])
  actual = _apply(
      lambda counts, threshold: lut.solarize_table(threshold),
      images,
      jnp.asarray(threshold, jnp.int32),
  )
  for i in range(len(images)):
    expected = ImageOps.solarize(Image.fromarray(images[i]), threshold[i])
    np.testing.assert_array_equal(actual[i], expected)


def test_solarize_add():
  images = _images()
  addend = np.array([0, 1, 99, 110, 128, 127, 200, 255, 50, 77])
  actual = _apply(
      lambda counts, addend: lut.solarize_add_table(addend),
      images,
      jnp.asarray(addend, jnp.int32),
  )
  for i in range(len(images)):
    table = [min(255, v + addend[i]) if v < 128 else v for v in range(256)]
    expected = Image.fromarray(images[i]).point(table * 3)
    np.testing.assert_array_equal(actual[i], expected)
