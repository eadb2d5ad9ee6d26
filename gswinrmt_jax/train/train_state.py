"""What a run carries from step to step."""

from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp
import optax

from gswinrmt_jax.train import average


class TrainState(struct.PyTreeNode):
  """Everything that one update changes.

  Attributes:
    step: Updates made so far, int32.
    params: The model's parameters, float32.
    batch_stats: Running statistics of the BatchNorms.
    opt_state: The optimiser's moments and count.
    ema: Moving average of parameters and statistics, `{'params',
      'batch_stats'}`; None if none is kept.
  """

  step: jax.Array
  params: Any
  batch_stats: Any
  opt_state: optax.OptState
  ema: Any = None

  @property
  def variables(self) -> dict[str, Any]:
    """What `model.apply` takes."""
    return {'params': self.params, 'batch_stats': self.batch_stats}

  @property
  def saved_weights(self) -> dict[str, Any]:
    """What of a checkpoint can be evaluated; see `average.by_name`."""
    return average.beside(self.variables, self.ema)


def create(
    model: nn.Module,
    tx: optax.GradientTransformation,
    key: jax.Array,
    image_shape: tuple[int, int, int],
    *,
    ema: bool = False,
) -> TrainState:
  """Returns the state before the first update.

  Args:
    model: Called as `model(image, train=False)`.
    tx: The optimiser.
    key: Seeds the parameters.
    image_shape: Height, width and channels of one image.
    ema: Whether to keep a moving average, which takes as much memory as the
      parameters.
  """
  # Nothing is differentiated, and draws are not to be hidden in `nn.remat`.
  if hasattr(model, 'remat'):
    model = model.clone(remat='none')
  # One image: no parameter's shape or value depends on the batch.
  image = jnp.zeros((1, *image_shape), jnp.float32)
  variables = model.init(key, image, train=False)
  state = TrainState(
      step=jnp.zeros((), jnp.int32),
      params=variables['params'],
      batch_stats=variables.get('batch_stats', {}),
      opt_state=tx.init(variables['params']),
  )
  return restart_average(state) if ema else state


def restart_average(state: TrainState) -> TrainState:
  """Begins the average at the state's own weights, without a warm-up."""
  # A copy: both are donated to the step, and one buffer cannot be twice.
  return state.replace(ema=jax.tree.map(jnp.copy, state.variables))
