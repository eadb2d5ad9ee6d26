"""The state of a training, and the moving average of its weights (EMA)."""

from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp
import optax

_EMA_IMAGES = 512  # `config.ema_decay` is the decay per so many images


class TrainState(struct.PyTreeNode):
  """Everything that one update changes.

  Attributes:
    step: Updates made so far, int32.
    params: The model's parameters, float32.
    batch_stats: Running statistics of the BatchNorms.
    opt_state: The optimizer's moments and count.
    ema: Moving average of parameters and statistics, `{'params',
      'batch_stats'}`; None if none is kept. Nothing is trained from it.
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
    tx: The optimizer.
    key: Seeds the parameters.
    image_shape: Height, width and channels of one image.
    ema: Whether to keep an average; takes as much memory as the parameters.
  """
  # One image: no parameter's shape or value depends on the batch.
  image = jnp.zeros((1, *image_shape), jnp.float32)
  variables = model.init(key, image, train=False)
  state = TrainState(
      step=jnp.zeros((), jnp.int32),
      params=variables['params'],
      batch_stats=variables.get('batch_stats', {}),
      opt_state=tx.init(variables['params']),
  )
  return restart_ema(state) if ema else state


def restart_ema(state: TrainState) -> TrainState:
  """Starts the average at the state's own weights, without a warm-up."""
  # A copy: a step donates both, and one buffer cannot be donated twice.
  return state.replace(ema=jax.tree.map(jnp.copy, state.variables))


def ema_decay_per_step(decay: float, batch_size: int) -> float:
  """Returns `decay ** (batch_size / 512)`.

  So the average reaches back over as many images whatever the batch size.
  """
  return decay ** (batch_size / _EMA_IMAGES)


def update_ema(ema: Any, variables: Any, decay: float) -> Any:
  """Returns `ema <- decay ema + (1 - decay) variables`.

  Written as a step towards the variables: `decay` is so close to 1 that its
  rounding would matter. What would move by less than half of a float32's last
  digit stays.

  Args:
    ema: The average before the step.
    variables: Parameters and statistics after the step.
    decay: Decay per step.
  """
  share = 1.0 - decay
  return jax.tree.map(
      lambda mean, value: mean + share * (value - mean), ema, variables
  )


def decay_range(params: Any) -> dict[str, jax.Array]:
  """Returns the least and greatest learnable decay, `gamma = sigmoid(theta)`.

  Args:
    params: Any tree; its leaves named `decay_logit` are the thetas.

  Returns:
    `gamma_min` and `gamma_max`, or nothing where no decay is learned.
  """
  thetas = [
      leaf.ravel()
      for path, leaf in jax.tree.leaves_with_path(params)
      if path[-1].key == 'decay_logit'
  ]
  if not thetas:
    return {}
  gamma = jax.nn.sigmoid(jnp.concatenate(thetas))
  return {'gamma_min': gamma.min(), 'gamma_max': gamma.max()}
