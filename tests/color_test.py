"""Blends and their degenerate images, against Pillow to the integer."""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageStat
import pytest

from gswinrmt_jax.augment import color

FACTORS = np.array(
    [0.1, 0.19, 0.253, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 1.7, 1.81, 1.9],
    np.float32,
)


def _images(b, h=9, w=13):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (b, h, w, 3), dtype=np.uint8)


def test_luma():
  image = _images(1, 200, 300)
  expected = np.asarray(Image.fromarray(image[0]).convert('L'))
  np.testing.assert_array_equal(jax.jit(color.luma)(image)[0, ..., 0], expected)


def test_mean_luma_rounds_half_up():
  image = _images(5)
  image[3] //= 3
  image[4] = 7
  image[4, :, :6] = 8  # 6 of 13 columns: 7.46
  mean = jax.jit(color.mean_luma)(image)[:, 0, 0, 0]
  for i in range(5):
    grey = Image.fromarray(image[i]).convert('L')
    assert mean[i] == int(ImageStat.Stat(grey).mean[0] + 0.5)
  half = np.array([[[[4] * 3, [5] * 3]]], np.uint8)
  assert color.mean_luma(jnp.asarray(half))[0, 0, 0, 0] == 5


@pytest.mark.parametrize('shape', [(9, 13), (3, 4), (2, 5), (5, 1)])
def test_smooth(shape):
  image = _images(2, *shape)
  out = jax.jit(color.smooth)(image)
  for i in range(2):
    expected = Image.fromarray(image[i]).filter(ImageFilter.SMOOTH)
    np.testing.assert_array_equal(out[i], expected)


def test_blend_of_all_pairs_of_levels():
  """256 x 256 levels by every factor: no contraction, no other rounding."""
  low, high = np.meshgrid(np.arange(256), np.arange(256), indexing='ij')
  low, high = (
      np.repeat(a.astype(np.uint8)[None, :, :, None], 3, axis=-1)
      for a in (low, high)
  )
  blend = jax.jit(color.blend)
  for factor in FACTORS:
    out = blend(low.astype(np.int32), high, factor[None])
    expected = Image.blend(
        Image.fromarray(low[0]), Image.fromarray(high[0]), float(factor)
    )
    np.testing.assert_array_equal(out[0], expected, err_msg=str(factor))


@pytest.mark.parametrize(
    'degenerate, enhance',
    [
        (color.luma, ImageEnhance.Color),
        (color.mean_luma, ImageEnhance.Contrast),
        (
            lambda image: jnp.zeros_like(image, jnp.int32),
            ImageEnhance.Brightness,
        ),
        (color.smooth, ImageEnhance.Sharpness),
    ],
    ids=['color', 'contrast', 'brightness', 'sharpness'],
)
def test_enhancements(degenerate, enhance):
  image = _images(len(FACTORS))

  def enhanced(image, factor):
    levels = jnp.broadcast_to(degenerate(image), image.shape)
    return color.blend(levels, image, factor)

  out = jax.jit(enhanced)(image, FACTORS)
  assert out.dtype == jnp.uint8
  for i, factor in enumerate(FACTORS):
    expected = enhance(Image.fromarray(image[i])).enhance(float(factor))
    np.testing.assert_array_equal(out[i], expected, err_msg=str(factor))
