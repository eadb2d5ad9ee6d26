"""Attention reach, decay kernels, gates and Grad-CAM of one image.

Token `i` of a stage with stride `s` covers the pixels `[s i, s (i + 1))`. The
tokens tile the image; the last row and column may extend beyond it.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from gswinrmt_jax import ops
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import attention, backbone
from gswinrmt_jax.ops import positions

# Unless a stage is given, Grad-CAM uses a map with at least this many tokens
# per axis, as in the last stage of an ImageNet model. With 4 tokens it pointed
# at the object far less often than with 8 (docs/models.md).
_MIN_CAM_EXTENT = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageMaps:
  """The maps of the last block of a stage.

  Attributes:
    stride: Pixels between neighbouring tokens.
    token: Row and column of the token whose attention is shown.
    weights: Weight that the output of this token gives to every token, per
      head; 0 outside its window.
    distance: Mean Manhattan distance under these weights, in tokens, per head.
    rates: `gamma` of the (width, height) pass per head, or one row for both.
      None without decay, and if the decay follows reading order.
    kernel: `gamma ** (|dx| + |dy|)` per head, up to the largest offset in a
      window, with zero offset in the middle. None if `rates` is None.
    gate: Mean of the gate over channels; None without a gate.
  """

  stride: int
  token: tuple[int, int]
  weights: Float[np.ndarray, 'n h w']
  distance: Float[np.ndarray, ' n']
  rates: Float[np.ndarray, 'passes n'] | None
  kernel: Float[np.ndarray, 'n y x'] | None
  gate: Float[np.ndarray, 'h w'] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Maps:
  """All maps of one image.

  Attributes:
    size: Height and width of the image, in pixels.
    point: Pixel (x, y) whose tokens are shown.
    logits: The model's logits.
    label: Class that Grad-CAM explains.
    stages: Maps of each stage.
    cam_stage: Stage of Grad-CAM, counted from 1.
    cam: Grad-CAM, upsampled to the image.
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
    cam_stage: int | None = None,
) -> Maps:
  """Computes the maps of one image, in float32 regardless of the model's dtype.

      maps = compute(model, variables, image, point=(16, 8))
      paths = drawing.write('maps', maps, pixels)

  Args:
    model: Classifier from `create_model`.
    variables: Its 'params' and 'batch_stats'.
    image: Normalised image [h w 3], floating point, without a batch axis.
    point: Pixel (x, y) whose tokens are shown; None is the centre.
    label: Class that Grad-CAM explains; None is the predicted class.
    cam_stage: Stage of Grad-CAM, counted from 1. None is the deepest stage
      whose map has at least 7 x 7 tokens, or else stage 1.

  Raises:
    UserError: If the point, class or stage does not exist, or the model has no
      head.
    ValueError: If the model does not accept such an image.
  """
  if not isinstance(model, backbone.Backbone):
    raise UserError(
        f'maps are those of a classifier, not of a {type(model).__name__}'
    )
  if image.ndim != 3 or not jnp.issubdtype(image.dtype, jnp.floating):
    raise ValueError(
        'one normalised image [h w 3], floating point, is needed, not '
        f'{image.dtype} {image.shape}'
    )
  arch = model.arch
  height, width = size = image.shape[:2]
  if point is None:
    point = width // 2, height // 2
  if cam_stage is None:
    cam_stage = _deepest(size, arch.strides)
  _check(model, size, point, label, cam_stage)
  tokens = tuple(token_at(point, stride) for stride in arch.strides)
  with jax.default_matmul_precision('highest'):  # not TF32 on a GPU
    found = _run(
        model.clone(dtype=jnp.float32, remat='none'),
        variables,
        jnp.asarray(image, jnp.float32),
        tokens,
        label,
        cam_index=cam_stage - 1,
    )
  logits, label, cam, found = jax.device_get(found)
  return Maps(
      size=size,
      point=point,
      logits=logits,
      label=int(label),
      stages=tuple(
          _stage_maps(arch, stage, tokens[stage], *arrays)
          for stage, arrays in enumerate(found)
      ),
      cam_stage=cam_stage,
      cam=cam,
      gate_fn=arch.gate_fn,
  )


@functools.partial(jax.jit, static_argnames=('model', 'cam_index'))
def _run(model, variables, image, tokens, label, *, cam_index):
  """Returns logits, class, Grad-CAM and each stage's arrays (last block).

  `cam_index` is the stage of Grad-CAM, counted from 0.
  """
  image = image[None]
  paths = [
      (f'stage{stage}', f'block{depth - 1:02d}', 'attention')
      for stage, depth in enumerate(model.arch.depths, start=1)
  ]
  attended, gates, activations = {}, {}, {}

  def record(next_function, args, kwargs, context):
    module, method = context.module, context.method_name
    out = next_function(*args, **kwargs)
    if isinstance(module, backbone.Stage):
      activations[module.stage] = out
    elif module.path in paths and method == 'attend':
      query, key, _, log_decay, *rest = args
      weights = module.weights(query, key, log_decay, *rest)
      weights = effective_weights(weights, out.shape, tokens[module.stage])
      attended[module.path] = weights[0], log_decay
    elif module.path[:-1] in paths and module.name == 'gate':
      gate = attention.GATES[model.arch.gate_fn](out)
      gates[module.path[:-1]] = gate.mean(-1)[0]
    return out

  with nn.intercept_methods(record):
    logits = model.apply(variables, image, train=False)
  if label is None:
    label = jnp.argmax(logits[0])
  activation = activations[cam_index]
  cam = grad_cam(model, variables, image, activation, label, cam_index)
  stride = model.arch.strides[cam_index]
  cam = upsample(cam[0], stride, image.shape[1:3])
  found = [(*attended[path], gates.get(path)) for path in paths]
  return logits[0], label, cam, found


def effective_weights(
    weights: Mapping[str, Array],
    shape: tuple[int, ...],
    token: tuple[Array | int, Array | int],
) -> Float[Array, 'b n h w']:
  r"""Returns the weights that one token's output gives to all tokens' values.

      O[i, j] = sum_I A_h[j, i, I] sum_J A_w[I, j, J] V[I, J]
      a[I, J] = A_h[j, i, I] A_w[I, j, J]

  per head, for the decomposed passes. For attention over all pairs, `a` is a
  row of `A`. It is 0 outside the token's window.

  Args:
    weights: From `Attention.weights`.
    shape: Shape of the map, `(b, h, w, c)`.
    token: `(i, j)`.
  """
  batch, height, width, _ = shape
  row, column = token
  if 'pairs' in weights:
    seen = weights['pairs'][:, :, row * width + column]
    return seen.reshape(batch, -1, height, width)
  down = weights['height'][:, column, :, row]  # [b n I]
  across = weights['width'][:, :, :, column]  # [b I n J]
  return down[..., None] * across.swapaxes(1, 2)


def mean_distance(
    weights: Float[np.ndarray, 'n h w'], token: tuple[int, int]
) -> Float[np.ndarray, ' n']:
  """Returns the mean Manhattan distance from `token` per head, in tokens.

  The mean is under the weights, normalised here because sigmoid weights need
  not sum to one. Negative weights of linear attention count by absolute value.
  """
  row, column = np.indices(weights.shape[1:])
  distance = np.abs(row - token[0]) + np.abs(column - token[1])
  weights = np.abs(weights.astype(np.float64))
  # All sigmoids of a head may underflow to 0.
  total = np.maximum(weights.sum((1, 2)), np.finfo(np.float32).tiny)
  return (weights * distance).sum((1, 2)) / total


def decay_kernel(
    rates: Float[np.ndarray, 'passes n'], reach: tuple[int, int]
) -> Float[np.ndarray, 'n _ _']:
  """Returns the decay by offset, `gamma_h ** |dy| * gamma_w ** |dx|`, per head.

  Args:
    rates: `gamma` of the (width, height) pass, or one row for both.
    reach: Largest `|dy|` and `|dx|`, in tokens; the first row is
      `dy = -reach[0]`, the first column `dx = -reach[1]`.
  """
  dy, dx = (np.abs(np.arange(-r, r + 1)) for r in reach)
  down = rates[-1, :, None, None] ** dy[:, None]
  across = rates[0, :, None, None] ** dx
  return down * across


def grad_cam(
    model: backbone.Backbone,
    variables: Mapping[str, Any],
    image: Float[Array, 'b h w 3'],
    activation: Float[Array, 'b y x c'],
    label: Int[Array, ''] | int,
    stage: int,
) -> Float[Array, 'b y x']:
  """Computes Grad-CAM of a class on a stage's map (arXiv 1610.02391, eq. 1, 2).

      cam = ReLU(sum_c mean_hw(dlogit / dA_c) A_c)

  `A` is `activation`, the output of the stage (counted from 0) for these
  images. Of the images, only the shape matters.
  """

  def logit(activation):
    """Returns the class logit, with `activation` as the stage's output."""

    def replace(next_function, args, kwargs, context):
      module = context.module
      if not isinstance(module, backbone.Stage) or module.stage > stage:
        return next_function(*args, **kwargs)
      # Earlier stages need not run: nothing reads their output.
      return activation if module.stage == stage else args[0]

    with nn.intercept_methods(replace):
      logits = model.apply(variables, image, train=False)
    return logits[:, label].sum()  # Each image depends only on its own map.

  gradient = jax.grad(logit)(activation)
  importance = gradient.mean((1, 2), keepdims=True)
  return jax.nn.relu((activation * importance).sum(-1))


def token_at(point: tuple[int, int], stride: int) -> tuple[int, int]:
  """Returns row and column of the token that contains the pixel (x, y)."""
  x, y = point
  return y // stride, x // stride


def upsample(
    values: Float[Array, 'h w'], stride: int, size: tuple[int, int]
) -> Float[Array, '_ _']:
  """Upsamples a map to the image's (height, width), bilinearly.

  Each value is placed at the centre of its token's pixels. Beyond the outermost
  centres the map is constant.
  """
  full = tuple(extent * stride for extent in values.shape)
  height, width = size
  return jax.image.resize(values, full, 'bilinear')[:height, :width]


def _stage_maps(arch, stage, token, weights, log_decay, gate):
  """Returns the maps of `stage`, which counts from 0."""
  rates = kernel = None
  distance = positions.manhattan  # of the two passes together
  if arch.is_full(stage):
    distance = ops.FULL_FORMS[arch.score_fn][1]
  if log_decay is not None and distance is positions.manhattan:
    rates = np.exp(log_decay)
    window = arch.window(stage)
    height, width = (
        min(extent, window or extent) - 1 for extent in weights.shape[1:]
    )
    kernel = decay_kernel(rates, (height, width))
  return StageMaps(
      stride=arch.strides[stage],
      token=token,
      weights=weights,
      distance=mean_distance(weights, token),
      rates=rates,
      kernel=kernel,
      gate=gate,
  )


def _deepest(size, strides):
  """Returns the deepest stage with enough tokens for Grad-CAM, else stage 1."""
  enough = [
      stage
      for stage, stride in enumerate(strides, start=1)
      if -(-min(size) // stride) >= _MIN_CAM_EXTENT
  ]
  return max(enough, default=1)


def _check(model, size, point, label, cam_stage):
  """Raises UserError for an invalid argument of `compute`."""
  if not model.num_classes:
    raise UserError('the model is a backbone: it has no class to explain')
  (height, width), (x, y) = size, point
  if not (0 <= x < width and 0 <= y < height):
    raise UserError(
        f'point {x}, {y} is outside of the {width} x {height} pixels that the '
        'model sees'
    )
  if label is not None and not 0 <= label < model.num_classes:
    raise UserError(
        f'class {label}: the model has classes 0 to {model.num_classes - 1}'
    )
  stages = model.arch.stages
  if not 1 <= cam_stage <= stages:
    raise UserError(f'Grad-CAM of stage {cam_stage}: there are 1 to {stages}')
