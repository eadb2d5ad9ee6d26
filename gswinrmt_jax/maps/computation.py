"""The maps of one image, computed."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
import numpy as np

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.maps import grad_cam as grad_cam_lib
from gswinrmt_jax.maps import grid, reach
from gswinrmt_jax.models import backbone
from gswinrmt_jax.ops import window as window_lib

# Grad-CAM's map has this many tokens on each axis, unless a stage is chosen: as
# many as at the end of a model for ImageNet. With 4 it pointed beside the
# object more often than at it (docs/models.md).
_MIN_CAM_EXTENT = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageMaps:
  """What one block of a stage does.

  Attributes:
    stride: Pixels from one token to the next.
    block: Index of the block in its stage, from 0.
    token: Row and column of the token that looks.
    weights: What its output takes from every token, per head; 0 outside of its
      window.
    distance: Mean Manhattan distance of what it looks at, in tokens, per head.
    rates: `gamma` of the (width, height) pass per head, or the one of both;
      None without decay.
    kernel: `gamma ** (|dx| + |dy|)` per head, as far as a window reaches; zero
      offset in the middle. None without decay, or if it goes by reading order.
    gate: Mean over the channels of the gate; None without gate.
  """

  stride: int
  block: int
  token: tuple[int, int]
  weights: Float[np.ndarray, 'n h w']
  distance: Float[np.ndarray, ' n']
  rates: Float[np.ndarray, 'passes n'] | None
  kernel: Float[np.ndarray, 'n y x'] | None
  gate: Float[np.ndarray, 'h w'] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Maps:
  """What a model does with one image.

  Attributes:
    size: Height and width of the image.
    point: The pixel (x, y) whose tokens look.
    logits: Of the image.
    label: The class of Grad-CAM.
    stages: By stage.
    cam_stage: The stage of Grad-CAM, from 1.
    cam: Grad-CAM, enlarged to the image.
    gate_fn: 'sigmoid' (G1) or 'swish'.
  """

  size: tuple[int, int]
  point: tuple[int, int]
  logits: Float[np.ndarray, ' k']
  label: int
  stages: tuple[StageMaps, ...]
  cam_stage: int
  cam: Float[np.ndarray, 'h w']
  gate_fn: str = 'sigmoid'


def compute(
    model: backbone.Backbone,
    variables: Mapping[str, Any],
    image: Array | np.ndarray,
    *,
    point: tuple[int, int] | None = None,
    label: int | None = None,
    blocks: tuple[int, ...] | None = None,
    cam_stage: int | None = None,
) -> Maps:
  """Computes the maps of one image, whatever the model's dtype in float32.

      maps = compute(model, variables, image, point=(16, 8))
      paths = write('maps', maps, picture)

  Args:
    model: From `create_model`.
    variables: Its 'params' and 'batch_stats'.
    image: Normalised [h w 3], as the model takes it, without a batch axis.
    point: The pixel (x, y) whose tokens look; None is the middle.
    label: The class of Grad-CAM; None is the class predicted.
    blocks: The block of each stage, from 0; negative ones count from the end.
      None is the last of each.
    cam_stage: The stage of Grad-CAM, from 1; None is the deepest whose map has
      at least 7 x 7 tokens.

  Raises:
    UserError: If the point, class, blocks or stage do not exist.
    ValueError: If the image is not one that the model takes.
  """
  if image.ndim != 3:
    raise ValueError(f'one image [h w 3] is needed, not {image.shape}')
  height, width = size = image.shape[:2]
  if point is None:
    point = width // 2, height // 2
  if cam_stage is None:
    cam_stage = _deepest(size, model.arch.strides)
  if blocks is None:
    blocks = (-1,) * model.arch.stages
  _check(model, size, point, label, blocks, cam_stage)
  blocks = tuple(
      range(depth)[block]
      for depth, block in zip(model.arch.depths, blocks, strict=True)
  )
  tokens = tuple(grid.token(point, stride) for stride in model.arch.strides)
  logits, label, cam, found = jax.device_get(
      _run(
          model.clone(dtype=jnp.float32),
          variables,
          jnp.asarray(image, jnp.float32),
          tokens,
          label,
          blocks=blocks,
          cam_stage=cam_stage,
      )
  )
  stages = tuple(
      _stage_maps(model.arch, stage, block, token, *arrays)
      for stage, (block, token, arrays) in enumerate(
          zip(blocks, tokens, found, strict=True)
      )
  )
  return Maps(
      size=size,
      point=point,
      logits=logits,
      label=int(label),
      stages=stages,
      cam_stage=cam_stage,
      cam=cam,
      gate_fn=model.arch.gate_fn,
  )


@functools.partial(jax.jit, static_argnames=('model', 'blocks', 'cam_stage'))
def _run(model, variables, image, tokens, label, *, blocks, cam_stage):
  """Returns logits, class, Grad-CAM, and what the block of each stage does."""
  image = image[None]
  paths = [
      (f'stage{stage}', f'block{block:02d}', 'attention')
      for stage, block in enumerate(blocks, start=1)
  ]
  looks = {}
  activations = {}

  def look(next_function, args, kwargs, context):
    module = context.module
    if isinstance(module, backbone.Stage):
      out = activations[module.stage + 1] = next_function(*args, **kwargs)
      return out
    if module.path not in paths or context.method_name != 'attend':
      return next_function(*args, **kwargs)
    query, key, value, log_decay = args
    out, weights = reach.effective_weights(
        lambda value: next_function(query, key, value, log_decay),
        value,
        model.arch.num_heads[module.stage],
        tokens[module.stage],
    )
    looks[module.path] = weights[0], log_decay
    return out

  with nn.intercept_methods(look):
    logits, state = model.apply(
        variables, image, train=False, mutable=['intermediates']
    )
  gates = {
      path[:-1]: values[0].mean(-1)
      for path, (values,) in traverse_util.flatten_dict(
          state.get('intermediates', {})
      ).items()
  }
  if label is None:
    label = jnp.argmax(logits[0])
  activation = activations[cam_stage]
  cam = grad_cam_lib.grad_cam(
      model, variables, image, activation, label, cam_stage
  )
  cam = grid.upsample(
      cam[0], model.arch.strides[cam_stage - 1], image.shape[1:3]
  )
  found = [(*looks[path], gates.get(path)) for path in paths]
  return logits[0], label, cam, found


def _stage_maps(arch, stage, block, token, weights, log_decay, gate):
  """Adds what follows from the arrays; the stage counts from 0."""
  rates = kernel = None
  if log_decay is not None and arch.score_fn != 'causal':
    rates = np.exp(log_decay)
    window = arch.window_size or None
    if stage + 1 in arch.full_stages:
      window = None
    height, width = (
        window_lib.effective(extent, window, 0)[0] - 1
        for extent in weights.shape[1:]
    )
    kernel = reach.decay_kernel(rates, (height, width))
  return StageMaps(
      stride=arch.strides[stage],
      block=block,
      token=token,
      weights=weights,
      distance=reach.mean_distance(weights, token),
      rates=rates,
      kernel=kernel,
      gate=gate,
  )


def _deepest(size, strides):
  """Returns the deepest stage whose map has enough tokens, else the first."""
  enough = [
      stage
      for stage, stride in enumerate(strides, start=1)
      if min(grid.extents(size, stride)) >= _MIN_CAM_EXTENT
  ]
  return max(enough, default=1)


def _check(model, size, point, label, blocks, cam_stage):
  """Raises what `compute` says, in the words of its arguments."""
  if not model.num_classes:
    raise UserError('the model is a backbone: it has no class to explain')
  height, width = size
  x, y = point
  if not (0 <= x < width and 0 <= y < height):
    raise UserError(
        f'point {x}, {y} is outside of the image of {width} x {height} pixels'
    )
  if label is not None and not 0 <= label < model.num_classes:
    raise UserError(
        f'class {label}: the model has classes 0 to {model.num_classes - 1}'
    )
  depths = model.arch.depths
  if len(blocks) != len(depths) or not all(
      -depth <= block < depth
      for depth, block in zip(depths, blocks, strict=True)
  ):
    raise UserError(f'blocks {blocks}: the stages have {depths} blocks')
  if not 1 <= cam_stage <= len(depths):
    raise UserError(
        f'Grad-CAM of stage {cam_stage}: there are 1 to {len(depths)}'
    )
