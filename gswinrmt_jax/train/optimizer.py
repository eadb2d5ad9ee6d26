"""AdamW, and which parameters decay."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from gswinrmt_jax.weights import state_dict

# Parameters of `models.block` that scale a branch.
_LAYER_SCALE = ('attention_scale', 'ffn_scale')
_DECAY_LOGIT = 'decay_logit'


def from_config(
    config: ml_collections.ConfigDict, learning_rate: optax.Schedule
) -> optax.GradientTransformation:
  """Returns the AdamW of a config; the learning rate is `train.schedule`'s."""
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
  """Returns AdamW whose weight decay spares what `decay_mask` says."""
  # Not within `inject_hyperparams`: it takes the mask for a schedule and
  # turns the decay off without a word.
  return optax.adamw(
      learning_rate,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      mask=functools.partial(decay_mask, decay, layer_scale=decay_layer_scale),
  )


def decay_mask(decay: str, params: Any, *, layer_scale: bool = False) -> Any:
  """Returns which leaves decay; the decay logits never do.

  Args:
    decay: 'kernels', all that are named so, depthwise ones included, but no
      bias or norm; 'all', everything, as RMT with Semantic FPN was trained;
      'not_norms', everything without 'norm' in its released name, as RMT with
      UperNet: the norms of blocks, downsampling and feature maps do not decay,
      but other biases and the BatchNorms of stem and heads do.
    params: The parameters.
    layer_scale: Whether LayerScale decays with the kernels. In the released RMT
      it is stored with four axes, and only arrays with one axis do not decay
      there.
  """
  kernels = {'kernel', *(_LAYER_SCALE if layer_scale else ())}

  def decays(path, _):
    *_, leaf = names = [entry.key for entry in path]
    if decay == 'kernels' or leaf == _DECAY_LOGIT:
      return leaf in kernels
    return decay == 'all' or 'norm' not in _released('/'.join(names))

  return jax.tree.map_with_path(decays, params)


def _released(path):
  """Returns the released name, our own where RMT has no such array."""
  try:
    return state_dict.released_name(path)
  except ValueError:
    return path


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
