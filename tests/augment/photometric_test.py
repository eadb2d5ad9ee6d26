"""Tests photometric distortion against Python's `colorsys`."""

import colorsys
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.augment import photometric
from gswinrmt_jax.augment.photometric import Distortion


def _distorted(image, brightness, contrast, first, saturation, hue):
  """Distorts one image pixel by pixel with `colorsys`."""
  image = np.clip(np.float64(image) + brightness, 0, 255)
  if first:
    image = np.clip(image * contrast, 0, 255)
  pixels = []
  for pixel in image.reshape(-1, 3):
    turn, share, value = colorsys.rgb_to_hsv(*pixel / 255)
    share = min(share * saturation, 1)
    pixels.append(colorsys.hsv_to_rgb((turn + hue / 360) % 1, share, value))
  image = 255 * np.reshape(pixels, image.shape)
  return image if first else np.clip(image * contrast, 0, 255)


# Black, white, grey, saturated colours, and ties between two channels.
_COLOURS = [(0, 0, 0), (255, 255, 255), (90, 90, 90), (255, 0, 0), (0, 255, 0)]
_COLOURS += [(0, 0, 255), (80, 80, 10), (10, 80, 80), (80, 10, 80)]


_distort = jax.jit(photometric.distort)


@pytest.mark.parametrize('first', [False, True])
def test_as_pixel_by_pixel(first):
  rng = np.random.default_rng(0)
  noise = rng.integers(0, 256, (4, 5, 9, 3))
  noise[:, 0] = _COLOURS
  # Unchanged; darker and paler; brighter and more saturated; hue alone, past 0.
  changes = {
      'brightness': (0, -31, 25, 0),
      'contrast': (1, 1.4, 0.6, 1),
      'contrast_first': (first,) * 4,
      'saturation': (1, 0.5, 1.5, 1),
      'hue': (0, -36, 30, -20),
  }
  how = Distortion(*(jnp.array(v, jnp.float32) for v in changes.values()))
  how = how._replace(contrast_first=jnp.array(changes['contrast_first']))
  got = _distort(np.float32(noise), how)
  want = [
      _distorted(image, *values)
      for image, *values in zip(noise, *changes.values(), strict=True)
  ]
  np.testing.assert_allclose(got, want, atol=2e-3)
  np.testing.assert_allclose(got[0], noise[0], atol=2e-3)


def test_what_is_drawn():
  how = photometric.draw(jax.random.key(0), 4000)
  for name, neutral, low, high in (
      ('brightness', 0, -32, 32),
      ('contrast', 1, 0.5, 1.5),
      ('saturation', 1, 0.5, 1.5),
      ('hue', 0, -36, 36),
  ):
    values = np.asarray(getattr(how, name))
    changed = values[values != neutral]
    assert abs(len(changed) / 4000 - 0.5) < 0.04, name  # 5 sigma
    spread = np.quantile(changed, [0, 0.25, 0.75, 1])
    want = low + (high - low) * np.array([0, 0.25, 0.75, 1])
    np.testing.assert_allclose(spread, want, atol=0.05 * (high - low))
  assert abs(np.mean(how.contrast_first) - 0.5) < 0.04
  # Changes are independent in whether they happen and in their strength.
  done = [how.brightness != 0, how.contrast != 1, how.saturation != 1]
  done = np.array([*done, how.hue != 0, how.contrast_first])
  assert np.abs(np.corrcoef(done) - np.eye(5)).max() < 0.08
  amounts = np.array([how.brightness, how.contrast, how.saturation, how.hue])
  for one, other in itertools.combinations(range(4), 2):
    both = amounts[:, done[one] & done[other]]  # about 1000
    assert abs(np.corrcoef(both[one], both[other])[0, 1]) < 0.15
