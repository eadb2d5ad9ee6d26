"""The function that is exported: pixels in, logits out."""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8
import numpy as np

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.weights.load import Weights

Served = Callable[[UInt8[Array, 'b h w 3'], Any], Float[Array, 'b k']]


def make(weights: Weights, depthwise_impl: str = 'auto') -> Served:
  """Returns `(uint8 [b h w 3], variables) -> float32 [b k]`, in float32.

  Args:
    weights: The model; its card's mean and deviation are taken off inside.
    depthwise_impl: How depthwise convolutions are computed.
  """
  fields = {
      **weights.card.fields,
      'depthwise_impl': depthwise_impl,
      # No kernels of our own, which are for the GPU that they are traced on.
      'ffn_impl': 'xla',
  }
  if fields.get('attention_impl') == 'pallas':
    fields['attention_impl'] = 'auto'
  card = dataclasses.replace(weights.card, fields=fields, dtype='float32')
  model = dataclasses.replace(weights, card=card).make_model()

  def served(pixels, variables):
    image = augment_lib.normalize(pixels, mean=card.mean, std=card.std)
    return model.apply(variables, image, train=False)

  return served


def samples(weights: Weights) -> UInt8[np.ndarray, 'b h w 3']:
  """Returns the two images that every export is checked on: noise."""
  height, width = weights.card.image_size
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (2, height, width, 3), np.uint8)


def logits(weights: Weights) -> np.ndarray:
  """Returns the model's own logits of `samples`."""
  pixels = jnp.asarray(samples(weights))
  return np.asarray(jax.jit(make(weights))(pixels, weights.variables))
