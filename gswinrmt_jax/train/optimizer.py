"""AdamW and its weight decay mask."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from gswinrmt_jax.weights import state_dict

# Parameters of `models.block` that scale a residual branch.
_LAYER_SCALE = ('attention_scale', 'ffn_scale')
_DECAY_LOGIT = 'decay_logit'


def from_config(
    config: ml_collections.ConfigDict, learning_rate: optax.Schedule
) -> optax.GradientTransformation:
  """Returns AdamW as configured, with a rate from `schedule.learning_rate`."""
  names = 'b1 b2 eps weight_decay decay decay_layer_scale'.split()
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
    decay: str = 'kernels',
    decay_layer_scale: bool = False,
) -> optax.GradientTransformation:
  """Returns AdamW that decays only the weights selected by `decay_mask`."""
  # Not wrapped in `inject_hyperparams`, which would take the mask for a
  # schedule and silently turn weight decay off.
  return optax.adamw(
      learning_rate,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=functools.partial(decay_mask, decay, layer_scale=decay_layer_scale),
  )


def decay_mask(decay: str, params: Any, *, layer_scale: bool = False) -> Any:
  """Returns the weight decay mask; it never includes the decay logits.

  Args:
    decay: Which leaves decay. 'kernels': kernels, including depthwise ones, but
      no bias or norm. 'all': everything, as for RMT with Semantic FPN.
      'not_norms': everything without 'norm' in its released name, as for RMT
      with UperNet. Norms of blocks, downsampling and feature maps then do not
      decay, but other biases and the BatchNorms of stem and heads do.
    params: The parameters.
    layer_scale: Whether LayerScale decays with the kernels. The released RMT
      decays it: only arrays with one axis are exempt there, and LayerScale is
      stored with four.
  """
  kernels = {'kernel', *(_LAYER_SCALE if layer_scale else ())}

  def decays(path, _):
    *_, leaf = names = [entry.key for entry in path]
    if decay == 'kernels' or leaf == _DECAY_LOGIT:
      return leaf in kernels
    return decay == 'all' or 'norm' not in _released('/'.join(names))

  return jax.tree.map_with_path(decays, params)


def _released(path):
  """Returns the released name of a path, or the path if RMT has none."""
  try:
    return state_dict.released_name(path)
  except ValueError:
    return path


def last_learning_rate(
    learning_rate: optax.Schedule, opt_state: optax.OptState
) -> jax.Array:
  """Returns the learning rate of the last update; before any, of the first.

  Args:
    learning_rate: The schedule given to `adamw`.
    opt_state: The state of `adamw`.
  """
  *_, scheduled = opt_state
  return learning_rate(jnp.maximum(scheduled.count - 1, 0))
