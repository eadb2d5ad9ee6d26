"""Packed pixels, and reading and choosing them."""

import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.augment import pixels

B, H, W = 2, 4, 5


def _image():
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (B, H, W, 3), dtype=np.uint8)


def test_pack_by_hand():
  image = jnp.array([[[[1, 2, 3], [255, 0, 255]]]], jnp.uint8)
  expected = [[[1 + 256 * 2 + 65536 * 3, 255 + 65536 * 255]]]
  np.testing.assert_array_equal(pixels.pack(image), expected)


def test_unpack_undoes_pack():
  image = _image()
  out = pixels.unpack(pixels.pack(jnp.asarray(image)))
  assert out.dtype == jnp.uint8
  np.testing.assert_array_equal(out, image)


def test_take_reads_rows_and_columns():
  image = _image()
  rng = np.random.default_rng(1)
  row, column = rng.integers(0, H, (B, 3, 7)), rng.integers(0, W, (B, 3, 7))
  out = pixels.take(
      pixels.pack(jnp.asarray(image)),
      jnp.asarray(row, jnp.int32),
      jnp.asarray(column, jnp.int32),
  )
  expected = image[np.arange(B)[:, None, None], row, column]
  np.testing.assert_array_equal(pixels.unpack(out), expected)


def test_choose_is_exact_up_to_the_largest_pixel():
  weight = jnp.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], jnp.float32)
  large = 2**24 - 1
  candidates = [
      jnp.array([[10, 11], [12, 13], [large, 15]], jnp.int32) + i
      for i in (0, -1, -2)
  ]
  expected = [[9, 10], [10, 11], [large, 15]]
  np.testing.assert_array_equal(pixels.choose(weight, *candidates), expected)
