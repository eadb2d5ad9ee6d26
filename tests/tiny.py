"""A model of a few hundred parameters, for tests of the code around models."""

import types

from flax import linen as nn
import numpy as np

from gswinrmt_jax.data import records

CLASSES = 3


class Tiny(nn.Module):
  """A convolution, BatchNorm, a decay, dropout and a linear layer."""

  arch = types.SimpleNamespace(stride=2)

  @nn.compact
  def __call__(self, x, *, train: bool):
    x = nn.Conv(5, (3, 3), strides=2, name='conv')(x)
    x = nn.BatchNorm(use_running_average=not train, name='norm')(x)
    theta = self.param('decay_logit', nn.initializers.constant(1.0), (2, 1))
    x = nn.relu(x) * nn.sigmoid(theta.mean())
    x = nn.Dropout(0.1, deterministic=not train)(x)
    return nn.Dense(CLASSES, name='head')(x.mean((1, 2)))


def arrays(seed: int, count: int) -> records.Arrays:
  """Returns 6 x 7 images whose brightness encodes their class."""
  rng = np.random.default_rng(seed)
  label = rng.integers(CLASSES, size=count).astype(np.int32)
  noise = rng.integers(0, 60, (count, 6, 7, 3))
  image = (noise + 80 * label[:, None, None, None]).astype(np.uint8)
  return records.Arrays(image, label)
