"""AdamW, with decay on kernels only."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

# Parameters of `models.block` that scale a branch.
_LAYER_SCALE = ('attention_scale', 'ffn_scale')


def from_config(
    config: ml_collections.ConfigDict, learning_rate: optax.Schedule
) -> optax.GradientTransformation:
  """Returns the AdamW of a config; the learning rate is `train.schedule`'s."""
  names = ('b1', 'b2', 'eps', 'weight_decay', 'decay_layer_scale')
  return adamw(
      learning_rate, **{name: config.optimizer[name] for name in names}
  )


def adamw(
    learning_rate: optax.Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.05,
    decay_layer_scale: bool = False,
) -> optax.GradientTransformation:
  """Returns AdamW whose weight decay spares what `decay_mask` says."""
  # Not within `inject_hyperparams`: it takes the mask for a schedule and
  # turns the decay off without a word.
  return optax.adamw(
      learning_rate,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=functools.partial(decay_mask, layer_scale=decay_layer_scale),
  )


def decay_mask(params: Any, *, layer_scale: bool = False) -> Any:
  """Returns which leaves decay: those named `kernel`, depthwise ones included.

  Biases, norms and the decay logits are left alone.

  Args:
    params: The parameters.
    layer_scale: Whether LayerScale decays. In the released RMT it is stored
      with four axes, and only arrays with one axis do not decay there.
  """
  names = {'kernel', *(_LAYER_SCALE if layer_scale else ())}
  return jax.tree.map_with_path(lambda path, _: path[-1].key in names, params)


def last_learning_rate(
    learning_rate: optax.Schedule, opt_state: optax.OptState
) -> jax.Array:
  """Returns the learning rate of the last update; of the first, before it.

  Args:
    learning_rate: That of the optimizer.
    opt_state: State of `adamw`.
  """
  *_, scheduled = opt_state
  return learning_rate(jnp.maximum(scheduled.count - 1, 0))
