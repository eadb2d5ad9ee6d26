"""The curves are a picture with something in it."""

import numpy as np
from PIL import Image

from gswinrmt_jax.training import plots

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
  plots.write_curves(path, ENTRIES, 'a run')
  first = np.asarray(Image.open(path).convert('L'))
  assert first.shape[1] > first.shape[0] > 200
  assert (first < 128).mean() > 0.005
  plots.write_curves(path, [], 'a run')
  assert not np.array_equal(first, np.asarray(Image.open(path).convert('L')))
  assert [file.name for file in tmp_path.iterdir()] == ['curves.png']
