"""Random variables without neutral values, and random images, by NumPy."""

from typing import Any

from flax import linen as nn
import jax
import numpy as np

from gswinrmt_jax.models import factory


def random_variables(
    model: nn.Module, image_shape: tuple[int, int, int]
) -> dict[str, Any]:
  """Returns float32 variables that keep feature maps of order one.

  That suffices for timing. No parameter is 0 or 1 everywhere, so that two
  models can be compared. Initialisation under jit would take as long to compile
  as the training step. An image shape is height, width, channels.
  """
  rng = np.random.default_rng(0)
  return jax.tree.map_with_path(
      lambda path, leaf: _leaf(rng, path[-1].key, leaf.shape).astype('float32'),
      factory.variable_shapes(model, image_shape),
  )


def _leaf(rng, name, shape):
  if name == 'var':
    return rng.uniform(0.5, 1.5, shape)
  noise = rng.normal(size=shape)
  if name == 'kernel':
    # Convolutions are residual branches over smooth feature maps.
    gain = 1.0 if len(shape) == 2 else 0.6
    return gain * noise / np.sqrt(np.prod(shape[:-1]))
  centre, width = {
      'scale': (1.0, 0.3),
      'decay_logit': (1.0, 1.0),
      'attention_scale': (0.5, 0.2),
      'ffn_scale': (0.5, 0.2),
  }.get(name, (0.0, 0.3))
  return centre + width * noise


def random_batch(
    batch: int, image_size: int, num_classes: int
) -> dict[str, np.ndarray]:
  """Returns normally distributed images, labels and smoothed targets."""
  rng = np.random.default_rng(0)
  image = rng.standard_normal((batch, image_size, image_size, 3), np.float32)
  label = rng.integers(num_classes, size=batch).astype(np.int32)
  target = np.full((batch, num_classes), 0.1 / num_classes, np.float32)
  target[np.arange(batch), label] += 0.9
  return {'image': image, 'label': label, 'target': target}
