"""A segmenter of a few hundred parameters, and images of several sizes.

`python tests/tiny_segments.py RUN OUT` evaluates one of its runs.
"""

import types

from flax import linen as nn
import numpy as np
import PIL.Image
import tiny_dense

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets, sources
from gswinrmt_jax.models.dense import create
from gswinrmt_jax.ops import padding

NAMES = ('road', 'tree', 'sky')
INFO = datasets.Info(
    'segments', NAMES, (0.4,) * 3, (0.3,) * 3, (32, 32), task='segmentation'
)
VOID = 255


class Segmenter(nn.Module):
  """A small convolutional segmenter on which padding has no effect."""

  arch = types.SimpleNamespace(stride=4)

  @nn.compact
  def __call__(self, x, *, train, extents=None):
    x = nn.Conv(5, (3, 3), name='conv')(padding.fill(x, extents))
    x = nn.BatchNorm(use_running_average=not train, name='norm')(x)
    x = nn.Dropout(0.1, deterministic=not train)(nn.relu(x))
    return nn.Dense(len(NAMES), name='head')(x)


class Source(sources.Source):
  """Images whose brightness encodes a pixel's class; the first row is void.

  It has no more than a source of one's own needs.

  Attributes:
    images: uint8 [h w 3], with sides of 9 to 16 pixels.
    masks: uint8 [h w], labels of the pixels.
  """

  def __init__(self, seed, count):
    rng = np.random.default_rng(seed)
    self.images, self.masks = [], []
    for height, width in rng.integers(9, 17, (count, 2)):
      label = rng.integers(len(NAMES), size=(height, 2)).repeat(8, 1)[:, :width]
      noise = rng.integers(0, 60, (height, width, 3))
      self.images.append((noise + 80 * label[..., None]).astype(np.uint8))
      label[0] = VOID
      self.masks.append(label.astype(np.uint8))

  def __len__(self):
    return len(self.masks)

  def __getitem__(self, row):
    return PIL.Image.fromarray(self.images[row]), self.masks[row]


SPLITS = {'train': Source(0, 10), 'val': Source(1, 7), 'test': Source(2, 5)}


def install(monkeypatch):
  """Replaces the real segmenter and images by tiny ones."""
  tiny_dense.install_data(monkeypatch, INFO, SPLITS)
  monkeypatch.setattr(recipes, 'make_model', lambda *args, **how: Segmenter())
  monkeypatch.setattr(create, 'create', lambda *args, **how: Segmenter())


def recipe(**changes):
  """Returns a recipe of three epochs."""
  config = recipes.segmentation('rmt_compact', 'fpn')
  config.update_from_flattened_dict(
      {
          **tiny_dense.FIELDS,
          'data.name': 'segments',
          'data.crop_size': (8, 12),
          'augment.photometric': True,
          'optimizer.learning_rate': 0.05,
          **changes,
      }
  )
  return config


if __name__ == '__main__':
  tiny_dense.main(install)
