"""What a run carries from step to step."""

from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp
import optax


class TrainState(struct.PyTreeNode):
  """Everything that one update changes.

  Attributes:
    step: Updates made so far, int32.
    params: The model's parameters, float32.
    batch_stats: Running statistics of the BatchNorms.
    opt_state: The optimiser's moments and count.
  """

  step: jax.Array
  params: Any
  batch_stats: Any
  opt_state: optax.OptState

  @property
  def variables(self) -> dict[str, Any]:
    """What `model.apply` takes."""
    return {'params': self.params, 'batch_stats': self.batch_stats}


def create(
    model: nn.Module,
    tx: optax.GradientTransformation,
    key: jax.Array,
    image_shape: tuple[int, int, int],
) -> TrainState:
  """Returns the state before the first update.

  Args:
    model: Called as `model(image, train=False)`.
    tx: The optimiser.
    key: Seeds the parameters.
    image_shape: Height, width and channels of one image.
  """
  # One image: no parameter's shape or value depends on the batch.
  image = jnp.zeros((1, *image_shape), jnp.float32)
  variables = model.init(key, image, train=False)
  return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=variables['params'],
      batch_stats=variables.get('batch_stats', {}),
      opt_state=tx.init(variables['params']),
  )
