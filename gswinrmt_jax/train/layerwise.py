"""Which layers a run trains, and how fast: freezing, layer-wise learning rates.

For fine-tuning: layers near the image need to change less than the head, which
is new.
"""

import contextlib
import re
from typing import Any

from flax import linen as nn
import jax
import optax

from gswinrmt_jax.models.layers import BatchNorm

# A value of `config.optimizer.freeze`, and the submodule of a segmenter.
_BACKBONE = 'backbone'
# The modules of a backbone. The norms of a dense model's maps are not among
# them: like the head, they are new.
_BODY = re.compile(r'stem|stage\d+|down\d+|proj|proj_norm|norm')


def is_frozen(names: tuple[str, ...], freeze: str) -> bool:
  """Returns whether a module or parameter is frozen.

  Args:
    names: Its path in the model, such as ('stage1', 'block00').
    freeze: As `config.optimizer.freeze`. '': nothing. 'stem': the stem.
      'stage2': from the stem to the second stage. 'backbone': all but the last
      linear layer of a classifier, or but neck and heads of a segmenter or
      detector; norms of feature maps count as a part of the heads.
  """
  if freeze == _BACKBONE:
    return in_backbone(names)
  names = names[1:] if names[:1] == (_BACKBONE,) else names
  if not freeze or not names:
    return False
  # `down2` leads from stage 2 to stage 3.
  stage = _number(names[0]) + names[0].startswith('down')
  return names[0] == 'stem' or 0 < stage <= _number(freeze)


def in_backbone(names: tuple[str, ...]) -> bool:
  """Returns whether a module or parameter belongs to a backbone.

  It may be the backbone of a classifier or of a dense model.
  """
  names = names[1:] if names[:1] == (_BACKBONE,) else names
  return bool(names and _BODY.fullmatch(names[0]))


def frozen_mask(params: Any, freeze: str) -> Any:
  """Returns for each parameter whether it is frozen."""
  return jax.tree.map_with_path(
      lambda path, _: is_frozen(tuple(entry.key for entry in path), freeze),
      params,
  )


def trained_count(params: Any, freeze: str) -> int:
  """Returns the number of parameters that are not frozen."""
  pairs = zip(
      jax.tree.leaves(params),
      jax.tree.leaves(frozen_mask(params, freeze)),
      strict=True,
  )
  return sum(leaf.size for leaf, frozen in pairs if not frozen)


def stop_gradients(params: Any, freeze: str) -> Any:
  """Returns the parameters; a gradient does not reach the frozen ones.

  Their gradient is 0. Since what is frozen begins at the image, the backward
  pass also ends there.
  """
  if not freeze:
    return params
  return jax.tree.map(
      lambda leaf, frozen: jax.lax.stop_gradient(leaf) if frozen else leaf,
      params,
      frozen_mask(params, freeze),
  )


def evaluate_frozen(
    freeze: str, statistics: bool
) -> contextlib.AbstractContextManager[None]:
  """Returns a context in which frozen modules run as in evaluation.

  Their BatchNorms normalise by the running statistics, which stay as they are,
  and their blocks have no stochastic depth. With `statistics`, all BatchNorms
  of the backbone do so, even those whose scale and bias are trained, as with
  `norm_eval=True` in mmdetection.
  """

  def interceptor(call, args, kwargs, context):
    module = context.module
    frozen = is_frozen(module.path, freeze) or (
        statistics
        and isinstance(module, BatchNorm)
        and in_backbone(module.path)
    )
    if frozen and 'train' in kwargs:
      kwargs = {**kwargs, 'train': False}
    return call(*args, **kwargs)

  return nn.intercept_methods(interceptor)


def freeze_updates(
    tx: optax.GradientTransformation, freeze: str
) -> optax.GradientTransformation:
  """Returns an optimizer without update, decay or moments of what is frozen."""
  if not freeze:
    return tx
  return optax.partition(
      {'trained': tx, 'frozen': optax.set_to_zero()},
      lambda params: jax.tree.map(
          lambda frozen: 'frozen' if frozen else 'trained',
          frozen_mask(params, freeze),
      ),
  )


def scale_by_layer(decay: float) -> optax.GradientTransformation:
  """Scales updates by `layer_scales`, which scales the learning rates."""
  return optax.stateless(
      lambda updates, _: jax.tree.map(
          lambda update, scale: scale * update,
          updates,
          layer_scales(updates, decay),
      )
  )


def layer_scales(params: Any, decay: float) -> Any:
  r"""Returns the factor of each parameter's learning rate.

      scale = decay^(L - l)

  The layer l is 0 for the stem, 1 to L - 1 for the blocks, counted through all
  stages, and L for what follows them: norm, projection and heads. Downsampling
  belongs to the block after it. This is BEiT's rule (Bao et al., arXiv
  2106.08254, `get_num_layer_for_vit` of its release), in timm
  `param_groups_layer_decay`.
  """
  paths = [_names(path) for path, _ in jax.tree.leaves_with_path(params)]
  blocks = {names[:2] for names in paths if _is_block(names)}
  blocks = sorted(blocks, key=lambda names: [*map(_number, names)])
  last = len(blocks) + 1

  def scale(path, _):
    names = _names(path)
    if names[0].startswith('down'):
      names = f'stage{_number(names[0]) + 1}', 'block00'
    if names[0] == 'stem':
      layer = 0
    else:
      layer = 1 + blocks.index(names[:2]) if _is_block(names) else last
    return decay ** (last - layer)

  return jax.tree.map_with_path(scale, params)


def _names(path):
  """Returns the path of a parameter, in a segmenter that in its backbone."""
  names = tuple(entry.key for entry in path)
  return names[1:] if names[0] == _BACKBONE else names


def _is_block(names):
  return names[0].startswith('stage') and names[1].startswith('block')


def _number(name):
  """Returns the number of 'stage2', 'down2' or 'block02', 0 for other names."""
  found = re.fullmatch(r'(?:stage|down|block)(\d+)', name)
  return int(found[1]) if found else 0
