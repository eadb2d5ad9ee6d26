"""AdamW, Muon, and their weight decay mask."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax
import optax.contrib

from gswinrmt_jax.train import layerwise
from gswinrmt_jax.weights import state_dict

# Parameters of `models.block` that scale a residual branch.
_LAYER_SCALE = ('attention_scale', 'ffn_scale')
_DECAY_LOGIT = 'decay_logit'
# Output layers of classifiers and of detectors, which Muon leaves to Adam, as
# its author does. In a segmenter, it is the module 'classifier'.
_OUTPUTS = {'head', 'dense_head', 'classes', 'boxes', 'logits', 'deltas'}
_MUON_RMS = 0.2  # root mean square of an update, about that of Adam's


def from_config(
    optimizer: ml_collections.ConfigDict, learning_rate: optax.Schedule
) -> optax.GradientTransformation:
  """Returns the optimizer of a config's section `optimizer`: AdamW or Muon.

  The two differ in what scales a gradient, which may be clipped before:
  `g min(1, clip_norm / |g|)`, with `|g|` over all trained parameters. Decoupled
  weight decay of what `decay_mask` selects and the learning rate follow.
  """
  scale = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.eps)
  if optimizer.name == 'muon':
    scales = {'muon': _scale_by_muon(), 'adam': scale}
    scale = optax.partition(scales, _optimizer_names)
  # Not wrapped in `inject_hyperparams`: its state would be another tree in
  # checkpoints. `last_learning_rate` computes the rate.
  mask = functools.partial(
      decay_mask, optimizer.decay, layer_scale=optimizer.decay_layer_scale
  )
  tx = optax.chain(
      scale,
      optax.add_decayed_weights(optimizer.weight_decay, mask),
      optax.scale_by_learning_rate(learning_rate),
  )
  if optimizer.clip_norm:
    tx = optax.chain(optax.clip_by_global_norm(optimizer.clip_norm), tx)
  tx = layerwise.freeze_updates(tx, optimizer.freeze)
  if optimizer.layer_decay < 1:
    tx = optax.chain(tx, layerwise.scale_by_layer(optimizer.layer_decay))
  return tx


def _scale_by_muon():
  """Returns Muon for matrices, up to weight decay and learning rate.

      U = orthogonalised Nesterov momentum of W's gradient, W [m, n]
      W <- W - learning_rate (0.2 sqrt(max(m, n)) U + weight_decay W)

  Muon is Jordan's (kellerjordan.github.io/posts/muon), in optax's version: the
  momentum of 0.95 is bias-corrected, and five Newton-Schulz steps make U about
  orthogonal. The factor gives it about the root mean square of Adam's updates,
  so that one learning rate serves both (Liu et al., arXiv 2502.16982).

  Matrices are the kernels of linear layers and of convolutions over all
  channels, these as [h w c_in, c_out]. Adam updates the layers that output
  classes, boxes or masks, depthwise kernels, norms, biases, LayerScale and
  decay logits.
  """
  return optax.chain(
      optax.contrib.scale_by_muon(
          weight_dimension_numbers=functools.partial(
              jax.tree.map,
              lambda kernel: optax.contrib.MuonDimensionNumbers(
                  tuple(range(kernel.ndim - 1)), (kernel.ndim - 1,)
              ),
          )
      ),
      optax.stateless(
          lambda updates, _: jax.tree.map(_scaled_by_shape, updates)
      ),
  )


def _scaled_by_shape(update):
  *rows, columns = update.shape
  return update * (_MUON_RMS * math.sqrt(max(math.prod(rows), columns)))


def _optimizer_names(params):
  """Returns 'muon' or 'adam' for each parameter."""

  def name(path, leaf):
    *layers, last = [entry.key for entry in path]
    # Depthwise kernels are [h, w, 1, c]. No other kernel has one input channel.
    matrix = leaf.ndim == 2 or (leaf.ndim == 4 and leaf.shape[2] > 1)
    output = {*layers[-1:]} & _OUTPUTS or 'classifier' in layers
    return 'muon' if last == 'kernel' and matrix and not output else 'adam'

  return jax.tree.map_with_path(name, params)


def decay_mask(decay: str, params: Any, *, layer_scale: bool = False) -> Any:
  """Returns the weight decay mask; it never includes the decay logits.

  Args:
    decay: Which leaves decay. 'kernels': kernels, including depthwise ones, but
      no bias or norm. 'all': everything, as for RMT with Semantic FPN.
      'not_norms': everything without 'norm' in its released name, as for RMT
      with UperNet. Norms of blocks, downsampling and feature maps then do not
      decay, but other biases and the BatchNorms of stem and heads do.
      'not_norm_layers': everything but scales and biases of normalisation
      layers, BatchNorm included, as for RMT with Cascade Mask R-CNN.
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
    if decay == 'all':
      return True
    path = '/'.join(names)  # in it, each normalisation layer is a 'norm'
    return 'norm' not in (_released(path) if decay == 'not_norms' else path)

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

  With layer-wise rates, it is that of the head.

  Args:
    learning_rate: The schedule given to `from_config`.
    opt_state: The state of the optimizer.
  """
  scheduled = optax.tree.get(opt_state, 'ScaleByScheduleState')
  return learning_rate(jnp.maximum(scheduled.count - 1, 0))
