"""A detector of a few hundred parameters, and scenes of several sizes.

`python tests/tiny_objects.py RUN OUT` evaluates one of its runs.
"""

import types

from flax import linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_dense

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets, detection
from gswinrmt_jax.models.dense import create
from gswinrmt_jax.models.dense.retinanet import RetinaNet
from gswinrmt_jax.ops import padding

NAMES = ('dark', 'light')
INFO = datasets.Info(
    'objects', NAMES, (0.4,) * 3, (0.3,) * 3, (32, 32), task='detection'
)


class Detector(nn.Module):
  """RetinaNet on four convolutions; padding has no effect."""

  arch = types.SimpleNamespace(stride=32)
  head = types.SimpleNamespace(smallest_anchor=12.0, num_classes=len(NAMES))

  @nn.compact
  def __call__(self, x, *, train, extents=None, truth=None):
    sizes = extents
    if extents is None:
      sizes = jnp.tile(jnp.array([x.shape[1:3]]), (len(x), 1))
    maps, stride = [], 1
    for factor in (4, 2, 2, 2):
      x = padding.fill(x, padding.strided(extents, stride))
      stride *= factor
      side = factor + 1
      x = nn.Conv(6, (side, side), factor, padding=side // 2)(x)
      x = nn.relu(x)
      maps.append(x)
    head = RetinaNet(
        len(NAMES),
        channels=6,
        tower_channels=6,
        tower_depth=1,
        anchor_scale=1.5,
        least_score=0.0,
        name='head',
    )
    return head(maps, sizes, extents, train=train, truth=truth)


def scenes(seed: int, counts: list[int]) -> detection.Scenes:
  """Returns scenes of 40 to 96 pixels; their fourth square is a crowd."""
  rng = np.random.default_rng(seed)
  images, objects = [], []
  for count in counts:
    height, width = 2 * rng.integers(20, 49, 2)  # halved without rounding
    image = rng.integers(80, 120, (height, width, 3)).astype(np.uint8)
    masks = []
    for _ in range(count):
      side = rng.integers(10, 25)
      top, left = rng.integers(height - side), rng.integers(width - side)
      label = int(rng.integers(2))
      mask = np.zeros((height, width), bool)
      mask[top : top + side, left : left + side] = True
      image[mask] = 255 * label
      masks.append((label, mask))
    images.append(image)
    found = detection.from_masks(masks)
    found.crowds[3:4] = True
    objects.append(found)
  return detection.Scenes(images, objects)


# Ten training images in batches of four: epochs end at steps 2, 5, 7.
SPLITS = {
    'train': scenes(0, [2, 0, 5, 1, 0, 3, 1, 8, 2, 1]),
    'val': scenes(1, [1, 0, 4, 2, 5, 1, 3]),
    'test': scenes(2, [2, 3, 0, 1]),
}


def install(monkeypatch: pytest.MonkeyPatch) -> None:
  """Replaces the real detector and images by tiny ones."""
  tiny_dense.install_data(monkeypatch, INFO, SPLITS)
  monkeypatch.setattr(recipes, 'make_model', lambda *args, **how: Detector())
  monkeypatch.setattr(create, 'create', lambda *args, **how: Detector())


def recipe(**changes):
  """Returns a recipe of three epochs."""
  config = recipes.detection('rmt_compact', 'retina')
  config.update_from_flattened_dict(
      {
          **tiny_dense.FIELDS,
          'data.name': 'objects',
          'data.fit_within': (72, 64),
          'augment.flip_vertical': True,
          'optimizer.learning_rate': 0.02,
          **changes,
      }
  )
  return config


if __name__ == '__main__':
  tiny_dense.main(install)
