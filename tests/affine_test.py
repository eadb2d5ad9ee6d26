"""Geometric operations, against Pillow's bicubic transform."""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from gswinrmt_jax.augment import affine, pixels

H, W = 21, 34
FILL = (10, 128, 250)
ZERO = dict.fromkeys(
    ('degrees', 'shear_x', 'shear_y', 'translate_x', 'translate_y'), 0.0
)


@jax.jit
def _jitted(image, moves):
  moves = {
      name: jnp.array([value], jnp.float32) for name, value in moves.items()
  }
  _, height, width, _ = image.shape
  x_in, y_in = affine.sources(height=height, width=width, **moves)
  return pixels.unpack(affine.resample(pixels.pack(image), x_in, y_in, FILL))


def _moved(image, **moves):
  return np.asarray(_jitted(image[None], ZERO | moves)[0])


def _image(seed=0):
  """Waves and noise: smooth parts, and parts in which the filter overshoots."""
  rng = np.random.default_rng(seed)
  y, x = np.mgrid[:H, :W]
  waves = np.stack([np.sin(x / 3), np.cos(y / 2), np.sin((x + y) / 5)], -1)
  noise = rng.normal(0, 60, (H, W, 3)) * (x > W // 2)[..., None]
  return np.clip(128 + 100 * waves + noise, 0, 255).astype(np.uint8)


def _assert_close(actual, expected):
  expected = np.asarray(expected).astype(int)
  within = np.abs(actual.astype(int) - expected) <= 1
  assert within.mean() >= 0.99
  # Nearly all are equal: rounding to the nearest instead would not be.
  assert (actual == expected).mean() >= 0.97


def _transform(image, matrix):
  return Image.fromarray(image).transform(
      (W, H),
      Image.Transform.AFFINE,
      matrix,
      Image.Resampling.BICUBIC,
      fillcolor=FILL,
  )


def test_rotate():
  for seed, degrees in enumerate([30.0, -30.0, 27.3, -3.0, 0.4]):
    image = _image(seed)
    expected = Image.fromarray(image).rotate(
        degrees, Image.Resampling.BICUBIC, fillcolor=FILL
    )
    _assert_close(_moved(image, degrees=degrees), expected)


def test_shear():
  for amount in (0.3, -0.3, 0.27, -0.013):
    image = _image()
    expected = _transform(image, (1, amount, 0, 0, 1, 0))
    _assert_close(_moved(image, shear_x=amount), expected)
    expected = _transform(image, (1, 0, 0, amount, 1, 0))
    _assert_close(_moved(image, shear_y=amount), expected)


def test_translate():
  for amount in (0.45, -0.45, 0.413, -0.02):
    image = _image()
    expected = _transform(image, (1, 0, amount * W, 0, 1, 0))
    _assert_close(_moved(image, translate_x=amount * W), expected)
    expected = _transform(image, (1, 0, 0, 0, 1, amount * H))
    _assert_close(_moved(image, translate_y=amount * H), expected)


def test_whole_pixels_are_exact():
  image = _image()
  np.testing.assert_array_equal(_moved(image), image)
  out = _moved(image, translate_x=5.0)
  np.testing.assert_array_equal(out[:, :-5], image[:, 5:])
  np.testing.assert_array_equal(
      out[:, -5:], np.broadcast_to(np.uint8(FILL), (H, 5, 3))
  )


def test_a_flat_image_stays_flat():
  """Truncation would darken it by a level if the weights summed to 1 - 1e-7."""
  flat = np.broadcast_to(np.uint8([1, 99, 254]), (H, W, 3))
  out = _moved(flat, degrees=17.0)
  levels = np.unique(out.reshape(-1, 3), axis=0)
  np.testing.assert_array_equal(levels, [[1, 99, 254], FILL])


def test_a_quarter_turn_is_counter_clockwise():
  image = _image()[:, :H]
  out = _moved(image, degrees=90.0)
  difference = out.astype(int) - np.rot90(image)
  assert (np.abs(difference[1:-1, 1:-1]) <= 1).mean() >= 0.99


def test_sources_of_a_shear_by_hand():
  """The middle of the pixel in row 2 is at 2.5: it reads 0.75 further right."""
  values = {name: jnp.zeros((2, 1)) for name in ZERO}
  values['shear_x'] = jnp.array([[0.3], [0.0]])
  x_in, y_in = jax.jit(affine.sources, static_argnames=('height', 'width'))(
      height=3, width=4, **values
  )
  assert x_in.shape == (2, 1, 3, 4)
  np.testing.assert_allclose(x_in[0, 0, 2], [1.25, 2.25, 3.25, 4.25], rtol=1e-6)
  np.testing.assert_allclose(y_in[0, 0, :, 0], [0.5, 1.5, 2.5])
  np.testing.assert_allclose(x_in[1, 0, 2], [0.5, 1.5, 2.5, 3.5])
