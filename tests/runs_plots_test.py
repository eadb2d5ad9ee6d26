"""The curves are a picture with something in it."""

import numpy as np
from PIL import Image

from gswinrmt_jax.data import datasets
from gswinrmt_jax.runs import plots
from gswinrmt_jax.terminal import Terminal

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
  """An image of one grey becomes darker; only the first ones are drawn."""
  info = datasets.Info('x', ('cat', 'dog', 'hen'), (0.5,) * 3, (0.25,) * 3)
  batch = {'image': np.full((7, 16, 24, 3), 204, np.uint8)}
  image = np.full((7, 16, 24, 3), (0.2 - 0.5) / 0.25, np.float32)
  targets = np.tile(np.float32([0.9, 0.1, 0.0]), (7, 1))
  path = tmp_path / 'batch.png'
  plots.write_augmented_batch(path, batch, (image, targets), info, count=3)
  drawn = np.asarray(Image.open(path).convert('RGB'))
  for grey in (204, 51):
    pixels = (drawn == grey).all(-1).sum()
    # The smooth edges of the text have a few more.
    assert 0 <= pixels - 3 * (16 * 6) * (24 * 6) < 100
