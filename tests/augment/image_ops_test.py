"""Tests tables, blends and affine maps against Pillow, grey level by level."""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageFilter, ImageOps, ImageStat
import pytest

from gswinrmt_jax.augment import image_ops, rand_augment
from gswinrmt_jax.augment.rand_augment import Op

FACTORS = np.array(
    [0.1, 0.19, 0.253, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 1.7, 1.81, 1.9],
    np.float32,
)
H, W = 21, 34
FILL = (10, 128, 250)


# --- Packed pixels ---


def test_pack_by_hand():
  image = jnp.array([[[[1, 2, 3], [255, 0, 255]]]], jnp.uint8)
  expected = [[[1 + 256 * 2 + 65536 * 3, 255 + 65536 * 255]]]
  np.testing.assert_array_equal(image_ops.pack(image), expected)


def test_choose_is_exact_up_to_the_largest_pixel():
  weight = jnp.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], jnp.float32)
  large = 2**24 - 1
  candidates = [
      jnp.array([[10, 11], [12, 13], [large, 15]], jnp.int32) + i
      for i in (0, -1, -2)
  ]
  expected = [[9, 10], [10, 11], [large, 15]]
  np.testing.assert_array_equal(image_ops.choose(weight, *candidates), expected)


# --- Tables of grey levels ---


def _level_images():
  """Returns noise of many ranges, and channels of one, two and three levels."""
  rng = np.random.default_rng(0)
  images = []
  for low, high in [(0, 256), (0, 255), (37, 201), (100, 117), (5, 90)]:
    images.append(rng.integers(low, high, (11, 19, 3)))
  images.append(np.clip(rng.normal(90, 30, (11, 19, 3)), 0, 255))
  images.append(np.full((11, 19, 3), (0, 77, 255)))  # one level
  images.append(rng.choice([3, 250], (11, 19, 3)))
  images.append(rng.choice([0, 255], (11, 19, 3), p=[0.02, 0.98]))
  images.append(rng.choice([10, 20, 30], (11, 19, 3), p=[0.9, 0.05, 0.05]))
  return np.stack(images).astype(np.uint8)


def _many_pixels():
  """Returns images with so many pixels that equalize's step exceeds 1."""
  rng = np.random.default_rng(1)
  noise = rng.normal(120, 40, (3, 64, 81, 3))
  noise[1, :50] = 13
  noise[2, :60] = 255
  return np.clip(noise, 0, 255).astype(np.uint8)


def _apply(make, images, *args):
  def looked_up(images, *args):
    counts = image_ops.histogram(images)
    table = jnp.broadcast_to(make(counts, *args), counts.shape)
    return image_ops.unpack(
        image_ops.apply_table(image_ops.pack(images), table)
    )

  return np.asarray(jax.jit(looked_up)(jnp.asarray(images), *args))


def _assert_same(actual, images, oracle):
  for i, image in enumerate(images):
    expected = np.asarray(oracle(Image.fromarray(image)))
    np.testing.assert_array_equal(actual[i], expected, err_msg=f'image {i}')


@pytest.mark.parametrize('images', [_level_images(), _many_pixels()])
def test_autocontrast(images):
  actual = _apply(image_ops.autocontrast_table, images)
  _assert_same(actual, images, ImageOps.autocontrast)


def test_autocontrast_of_every_range():
  """Against Pillow's float64 expression, for all 32,640 pairs of lo and hi."""
  low, high = np.triu_indices(256, 1)
  counts = np.zeros((len(low), 256), np.int32)
  counts[np.arange(len(low)), low] = 1
  counts[np.arange(len(low)), high] = 1
  actual = jax.jit(image_ops.autocontrast_table)(
      jnp.asarray(counts[:, :, None])
  )
  level = np.arange(256)
  scale = (255.0 / (high - low))[:, None]
  expected = (level * scale + -low[:, None] * scale).astype(int)
  occurs = (level >= low[:, None]) & (level <= high[:, None])
  np.testing.assert_array_equal(
      np.asarray(actual)[..., 0][occurs], expected[occurs]
  )
  exact = (level - low[:, None]) * 255 // (high - low)[:, None]
  assert (expected != exact)[occurs].sum() == 12094  # inexact in Pillow


@pytest.mark.parametrize('images', [_level_images(), _many_pixels()])
def test_equalize(images):
  actual = _apply(image_ops.equalize_table, images)
  _assert_same(actual, images, ImageOps.equalize)
  # With only 209 pixels the step, 209 // 255, is 0: the identity.
  assert (actual != images).any() == (images.shape[1] > 11)


# --- Blends ---


def _noise(b, h=9, w=13):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (b, h, w, 3), dtype=np.uint8)


def test_mean_luma_of_a_large_image():
  """The sum of 4.41 million whites fits into int32, its double does not."""
  white = jnp.full((1, 2100, 2100, 3), 255, jnp.uint8)
  assert image_ops.mean_luma(white).item() == 255


def test_mean_luma_rounds_half_up():
  image = _noise(5)
  image[3] //= 3
  image[4] = 7
  image[4, :, :6] = 8  # 6 of 13 columns: mean 7.46
  mean = jax.jit(image_ops.mean_luma)(image)[:, 0, 0, 0]
  for i in range(5):
    grey = Image.fromarray(image[i]).convert('L')
    assert mean[i] == int(ImageStat.Stat(grey).mean[0] + 0.5)
  half = np.array([[[[4] * 3, [5] * 3]]], np.uint8)
  assert image_ops.mean_luma(jnp.asarray(half))[0, 0, 0, 0] == 5


@pytest.mark.parametrize('shape', [(9, 13), (3, 4), (2, 5), (5, 1)])
def test_smooth(shape):
  image = _noise(2, *shape)
  out = jax.jit(image_ops.smooth)(image)
  for i in range(2):
    expected = Image.fromarray(image[i]).filter(ImageFilter.SMOOTH)
    np.testing.assert_array_equal(out[i], expected)


def test_blend_of_all_pairs_of_levels():
  """A fused multiply-add, or other rounding, would change some of them."""
  low, high = np.meshgrid(np.arange(256), np.arange(256), indexing='ij')
  low, high = (
      np.repeat(a.astype(np.uint8)[None, :, :, None], 3, axis=-1)
      for a in (low, high)
  )
  blend = jax.jit(image_ops.blend)
  for factor in FACTORS:
    out = blend(low.astype(np.int32), high, factor[None])
    expected = Image.blend(
        Image.fromarray(low[0]), Image.fromarray(high[0]), float(factor)
    )
    np.testing.assert_array_equal(out[0], expected, err_msg=str(factor))


# --- Resampling (rand_augment_test.py compares moves to Pillow) ---


@jax.jit
def _moved(image, op, level):
  """Applies a move; level 10 is 30 degrees, shear 0.3 or 0.45 of a side."""
  _, height, width, _ = image.shape
  operation = rand_augment.timm_operation(
      jnp.full(1, op, jnp.int32),
      jnp.full(1, level, jnp.float32),
      jnp.ones(1, jnp.float32),
      height=height,
      width=width,
  )
  packed = image_ops.pack(image)
  return image_ops.unpack(
      image_ops.resample_bicubic(packed, operation.x_in, operation.y_in, FILL)
  )


def _waves(seed=0):
  """Returns smooth waves, and noise in which the filter overshoots."""
  rng = np.random.default_rng(seed)
  y, x = np.mgrid[:H, :W]
  waves = np.stack([np.sin(x / 3), np.cos(y / 2), np.sin((x + y) / 5)], -1)
  noise = rng.normal(0, 60, (H, W, 3)) * (x > W // 2)[..., None]
  return np.clip(128 + 100 * waves + noise, 0, 255).astype(np.uint8)


def test_whole_pixels_are_exact():
  image = _waves()
  (out,) = _moved(image[None], Op.IDENTITY, 9.0)
  np.testing.assert_array_equal(out, image)
  image = np.pad(image, ((0, 0), (0, 6), (0, 0)), 'wrap')  # 40 pixels wide
  (out,) = _moved(image[None], Op.TRANSLATE_X, 10.0)  # 18 pixels
  np.testing.assert_array_equal(out[:, :-18], image[:, 18:])
  np.testing.assert_array_equal(
      out[:, -18:], np.broadcast_to(np.uint8(FILL), (H, 18, 3))
  )


def test_a_flat_image_stays_flat():
  """Truncation would darken it by a level if the weights summed to 1 - 1e-7."""
  flat = np.broadcast_to(np.uint8([1, 99, 254]), (1, H, W, 3))
  out = _moved(flat, Op.ROTATE, 17 / 3)
  levels = np.unique(out.reshape(-1, 3), axis=0)
  np.testing.assert_array_equal(levels, [[1, 99, 254], FILL])
