"""The train state and the exponential moving average (EMA) of its weights."""

from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp
import optax

_EMA_IMAGES = 512  # `config.ema_decay` is the decay per this many images


class TrainState(struct.PyTreeNode):
  """Everything that one update changes.

  Attributes:
    step: Number of updates made, int32.
    params: The model's parameters, float32.
    batch_stats: Running statistics of the BatchNorms.
    opt_state: Moments and update count of the optimizer.
    ema: EMA of parameters and statistics, `{'params', 'batch_stats'}`, or None
      if none is kept. Training does not use it.
  """

  step: jax.Array
  params: Any
  batch_stats: Any
  opt_state: optax.OptState
  ema: Any = None

  @property
  def variables(self) -> dict[str, Any]:
    """The variables for `model.apply`."""
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

  The model is called as `model(image, train=False)`, on one image of height,
  width and channels `image_shape`. An EMA takes as much memory as the
  parameters.
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
  """Restarts the EMA at the state's own weights."""
  # A copy: the step donates both, and a buffer cannot be donated twice.
  return state.replace(ema=jax.tree.map(jnp.copy, state.variables))


def ema_decay_per_step(decay: float, batch_size: int) -> float:
  """Returns `decay ** (batch_size / 512)`.

  The EMA then averages over the same number of images at any batch size.
  """
  return decay ** (batch_size / _EMA_IMAGES)


def update_ema(
    ema: Any, variables: Any, decay: float, *, step: jax.Array | None = None
) -> Any:
  """Returns `decay ema + (1 - decay) variables`, with `decay` per step.

  With a warm-up, as in TensorFlow's `ExponentialMovingAverage`,

      decay_t = min(decay, (1 + t) / (10 + t))

  so that a short run does not end near the weights that it started from: after
  t steps, the average is over about the last t / 9, until `decay` is smaller.

  Computed as `ema + (1 - decay) (variables - ema)`, since `decay` is so close
  to 1 that its rounding would matter. A change of less than half a unit in the
  last place of float32 is lost.

  Args:
    ema: The average before the update.
    variables: The variables after it.
    decay: The decay per step.
    step: Number t of updates made before, for the warm-up; None: without one.
  """
  share = 1.0 - decay
  if step is not None:
    share = jnp.maximum(share, 9.0 / (10.0 + step))  # 1 - (1 + t) / (10 + t)
  return jax.tree.map(
      lambda mean, value: mean + share * (value - mean), ema, variables
  )


def decay_range(params: Any) -> dict[str, jax.Array]:
  """Returns the smallest and largest learned decay, `gamma = sigmoid(theta)`.

  Args:
    params: Any tree; its leaves named `decay_logit` hold theta.

  Returns:
    `gamma_min` and `gamma_max`; an empty dict if no decay is learned.
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
