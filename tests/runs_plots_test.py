"""The curves, and the first batch before and after its augmentation."""

import jax.numpy as jnp
import numpy as np
from PIL import Image

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import datasets
from gswinrmt_jax.runs import plots
from gswinrmt_jax.terminal import Terminal

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
ENTRIES = [
    {
        'kind': 'train',
        'epoch': 0.5,
        'loss': 2.0,
        'accuracy': 0.25,
        'learning_rate': 1e-3,
    },
    {
        'kind': 'epoch',
        'epoch': 1,
        'train_loss': 1.5,
        'train_accuracy': 0.5,
        'val_loss': 1.25,
        'val_accuracy': 0.75,
    },
]


def test_writes_a_picture_whole(tmp_path):
  path = tmp_path / 'curves.png'
  plots.draw_curves(tmp_path, ENTRIES, Terminal())
  first = np.asarray(Image.open(path).convert('L'))
  assert first.shape[1] > first.shape[0] > 200
  assert (first < 128).mean() > 0.005
  plots.draw_curves(tmp_path, [], Terminal())
  assert not np.array_equal(first, np.asarray(Image.open(path).convert('L')))
  assert [file.name for file in tmp_path.iterdir()] == ['curves.png']


def test_the_average_has_a_curve_of_its_own(tmp_path):
  """Green, in two panels, with a line in each legend."""

  def green(entries):
    plots.draw_curves(tmp_path, entries, Terminal())
    pixels = np.asarray(Image.open(tmp_path / 'curves.png').convert('RGB'))
    return (pixels == (44, 160, 44)).all(-1).sum()

  averaged = {'val_ema_loss': 1.0, 'val_ema_accuracy': 0.9}
  assert green(ENTRIES) == 0
  assert green([ENTRIES[0], {**ENTRIES[1], **averaged}]) > 50


def test_the_augmented_batch_is_drawn_as_it_was_and_became(tmp_path):
  """An image of one grey becomes darker."""
  info = datasets.Info('x', ('cat', 'dog', 'hen'), (0.5,) * 3, (0.25,) * 3)
  batch = {'image': np.full((3, 16, 24, 3), 204, np.uint8)}
  image = np.full((3, 16, 24, 3), (0.2 - 0.5) / 0.25, np.float32)
  targets = np.tile(np.float32([0.9, 0.1, 0.0]), (3, 1))
  path = tmp_path / 'batch.png'
  plots.write_augmented_batch(path, batch, (image, targets), info)
  drawn = np.asarray(Image.open(path).convert('RGB'))
  for grey in (204, 51):
    pixels = (drawn == grey).all(-1).sum()
    # The smooth edges of the text have a few more.
    assert 0 <= pixels - 3 * (16 * 6) * (24 * 6) < 100


def _pictures(count, h=30, w=40):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (count, h, w, 3), dtype=np.uint8)


def test_pictures_show_each_image_above_its_augmented_one(tmp_path):
  """Scale 4: 96 / 30, rounded up; cells of 164 by 2 * 124 + 24 pixels."""
  before, after = _pictures(3), 255 - _pictures(3)
  path = tmp_path / 'pairs.png'
  titles = ['a', 'two\nlines', 'long ' * 60]
  plots.write_before_after(path, before, after, titles, columns=2)
  grid = np.asarray(Image.open(path))
  assert grid.shape == (2 * 272, 2 * 164, 3)
  for i in range(3):
    top, left = 272 * (i // 2), 164 * (i % 2) + 2
    for offset, images in ((2, before), (126, after)):
      shown = grid[top + offset :, left:][:120:4, :160:4]
      np.testing.assert_array_equal(shown, images[i])
    assert (grid[top + 246 : top + 260, left : left + 160] < 128).any()
  assert (grid[272:, 164:] == 255).all()  # the empty fourth, and no long title
  assert (grid[260:272, 166:] < 128).any()  # the second line
  plots.write_before_after(path, before, after, titles)
  assert np.asarray(Image.open(path)).shape == (272, 3 * 164, 3)


def test_denormalize_undoes_normalize():
  images = _pictures(2)
  pixels = augment_lib.normalize(jnp.asarray(images), MEAN, STD)
  np.testing.assert_array_equal(
      plots.denormalize(np.asarray(pixels), MEAN, STD), images
  )
  wild = np.array([[[[-9.0, 9.0, 0.0]]]])
  np.testing.assert_array_equal(
      plots.denormalize(wild, MEAN, STD), [[[[0, 255, 76]]]]
  )


def test_describe_names_what_is_in_it():
  names = ('cat', 'dog', 'ship')
  assert plots.describe(np.array([0.1, 0.2, 0.7]), names) == (
      'ship 0.70\ndog 0.20'
  )
  smoothed = np.array([0.03, 0.94, 0.03])
  assert plots.describe(smoothed, names) == 'dog 0.94'
