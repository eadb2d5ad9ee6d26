"""Pictures of a batch."""

import jax.numpy as jnp
import numpy as np
from PIL import Image
import pytest

from gswinrmt_jax.augment import batch, picture

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)


def _images(count, h=30, w=40):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (count, h, w, 3), dtype=np.uint8)


def test_grid_shows_every_image_enlarged(tmp_path):
  """Scale 4: 96 / 30, rounded up; cells of 160 + 4 by 120 + 4 pixels."""
  images = _images(5)
  picture.write_grid(tmp_path / 'grid.png', images, columns=3)
  grid = np.asarray(Image.open(tmp_path / 'grid.png'))
  assert grid.shape == (2 * 124, 3 * 164, 3)
  for i, image in enumerate(images):
    top, left = 124 * (i // 3) + 2, 164 * (i % 3) + 2
    shown = grid[top : top + 120 : 4, left : left + 160 : 4]
    np.testing.assert_array_equal(shown, image)
  assert (grid[124:, 2 * 164 :] == 255).all()  # the empty sixth


def test_titles_stay_in_their_cells(tmp_path):
  images = _images(2)
  picture.write_grid(tmp_path / 'a.png', images, ['a title ' * 20, ''])
  grid = np.asarray(Image.open(tmp_path / 'a.png'))
  below = grid[122:]
  assert (below[:, :164] < 128).any() and (below[:, 164:] == 255).all()
  assert grid.shape[0] == 136
  picture.write_grid(tmp_path / 'b.png', images, ['one', 'two\nlines'])
  grid = np.asarray(Image.open(tmp_path / 'b.png'))
  assert grid.shape[0] == 148 and (grid[136:, 164:] < 128).any()


def test_before_after_puts_each_above_its_own(tmp_path):
  before, after = _images(3), 255 - _images(3)
  path = tmp_path / 'pairs.png'
  picture.write_before_after(path, before, after, columns=2)
  grid = np.asarray(Image.open(path))
  assert grid.shape == (4 * 124, 2 * 164, 3)
  np.testing.assert_array_equal(grid[2:122:4, 166:326:4], before[1])
  np.testing.assert_array_equal(grid[126:246:4, 166:326:4], after[1])
  np.testing.assert_array_equal(grid[250:370:4, 2:162:4], before[2])
  np.testing.assert_array_equal(grid[374:494:4, 2:162:4], after[2])
  picture.write_before_after(path, before, after, ['a', 'b', 'c'], columns=8)
  assert np.asarray(Image.open(path)).shape == (2 * 136, 3 * 164, 3)


def test_denormalize_undoes_normalize():
  images = _images(2)
  pixels = batch.normalize(jnp.asarray(images), MEAN, STD)
  np.testing.assert_array_equal(
      picture.denormalize(np.asarray(pixels), MEAN, STD), images
  )
  wild = np.array([[[[-9.0, 9.0, 0.0]]]])
  np.testing.assert_array_equal(
      picture.denormalize(wild, MEAN, STD), [[[[0, 255, 76]]]]
  )


def test_describe_names_what_is_in_it():
  names = ('cat', 'dog', 'ship')
  assert picture.describe(np.array([0.1, 0.2, 0.7]), names) == (
      'ship 0.70\ndog 0.20'
  )
  smoothed = np.array([0.03, 0.94, 0.03])
  assert picture.describe(smoothed, names) == 'dog 0.94'


def test_bad_input_is_refused(tmp_path):
  path = tmp_path / 'a.png'
  with pytest.raises(ValueError, match='not uint8'):
    picture.write_grid(path, _images(1).astype(np.float32))
  with pytest.raises(ValueError, match='no images'):
    picture.write_grid(path, _images(0))
  with pytest.raises(ValueError, match='1 titles for 2'):
    picture.write_grid(path, _images(2), ['a'])
  with pytest.raises(ValueError, match='after'):
    picture.write_before_after(path, _images(2), _images(3))
