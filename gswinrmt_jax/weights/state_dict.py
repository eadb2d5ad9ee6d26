"""Converts RMT weights to and from the names and layouts of the released code.

The released PyTorch code stores Linear weights as (out, in), convolutions as
OIHW and LayerScale as (1, 1, 1, C); here they are [in, out], HWIO and [C].
Segmenters use the names of mmsegmentation and detectors those of mmdetection
2.11, with 'backbone.' before those of the backbone. A transposed convolution is
(in, out, row, column) there. The first linear layer of a box head reads pooled
boxes by channel, row and column there, by row, column and channel here.
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.models import factory, named
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.models.dense.dense_model import DenseModel
from gswinrmt_jax.models.dense.detector import Detector
from gswinrmt_jax.models.dense.rcnn import BOX_BINS
from gswinrmt_jax.models.dense.segmenter import Segmenter
from gswinrmt_jax.models.dense.upernet import POOLED
from gswinrmt_jax.ops import positions

# The fields in which an RMT may differ from the released ones: all but those of
# its design, with another value of which the same arrays would mean something
# else. Without windows, nothing is shifted.
_MAY_DIFFER = {
    field.name
    for field in dataclasses.fields(Architecture)
    if field.metadata['kind'] != 'design' or field.name == 'shift'
}
_IN_BLOCK = {
    '': '',
    'position': '.pos.conv',
    'attention_norm': '.retention_layer_norm',
    'attention/query': '.retention.q_proj',
    'attention/key': '.retention.k_proj',
    'attention/value': '.retention.v_proj',
    'attention/local': '.retention.lepe.conv',
    'attention/out': '.retention.out_proj',
    'ffn_norm': '.final_layer_norm',
    'ffn/up': '.ffn.fc1',
    'ffn/position': '.ffn.dwconv.conv',
    'ffn/norm': '.ffn.ffn_layernorm',
    'ffn/down': '.ffn.fc2',
}
_LEAVES = {
    'kernel': 'weight',
    'scale': 'weight',
    'bias': 'bias',
    'mean': 'running_mean',
    'var': 'running_var',
    'attention_scale': 'gamma_1',
    'ffn_scale': 'gamma_2',
}
_COUNTER = '.num_batches_tracked'
_BACKBONE = 'backbone'  # of a dense model
_LAYER_SCALES = ('.gamma_1', '.gamma_2')
_TRANSPOSED = '.upsample.weight'
_READS_BOXES = '.shared_fcs.0.weight'  # the first layer of a box head
_HEADS = (
    *('neck.', 'decode_head.', 'auxiliary_head.'),
    *('bbox_head.', 'rpn_head.', 'roi_head.'),
)
# The released code computes its tables in float32: log(1 - 2^-k) near 0 keeps
# the rounding error of its argument.
_TABLE_ERROR = 1e-6


def _in_block(stage, index, module):
  block = f'layers.{int(stage) - 1}.blocks.{int(index)}'
  return block + _IN_BLOCK[module] if module in _IN_BLOCK else ''


_IN_RPN = {'conv': 'rpn_conv', 'logits': 'rpn_cls', 'deltas': 'rpn_reg'}
_IN_BOXES = {
    'layers_0': 'shared_fcs.0',
    'layers_1': 'shared_fcs.1',
    'logits': 'fc_cls',
    'deltas': 'fc_reg',
}
_IN_MASKS = {
    **{f'convs_{i}': f'convs.{i}.conv' for i in range(4)},
    'upsample': 'upsample',
    'logits': 'conv_logits',
}
# The layers of a ConvBN, and a convolution alone.
_LAYERS = {'/conv': 'conv', '/norm': 'bn', '': 'conv'}


def _in_head(pattern, name):
  """Extends a pair of `_MODULES` to the layers inside a segmenter's module."""
  return (
      pattern + '(/conv|/norm|)',
      lambda *found: f'{name(*found[:-1])}.{_LAYERS[found[-1]]}',
  )


_IN_PYRAMID = {'lateral': 'lateral_convs', 'output': 'fpn_convs'}
# Our module -> the released one, by the first pattern that matches fully.
_MODULES = (
    (r'stem/conv(\d)', lambda i: f'patch_embed.proj.{3 * int(i)}'),
    (r'stem/norm(\d)', lambda i: f'patch_embed.proj.{3 * int(i) + 1}'),
    (r'stage(\d)/block(\d+)/?(.*)', _in_block),
    (r'down(\d)/conv', lambda i: f'layers.{int(i) - 1}.downsample.reduction'),
    (r'down(\d)/norm', lambda i: f'layers.{int(i) - 1}.downsample.norm'),
    (r'feature_norm(\d)', lambda i: f'extra_norms.{int(i) - 1}'),
    (r'proj_norm', lambda: 'norm'),
    (r'dense_head', lambda: 'aux_head'),
    (r'(norm|proj|head)', str),
    (r'(\w+_head)/classifier/conv', lambda head: f'{head}.conv_seg'),
    _in_head(  # A detector's neck is in its head.
        r'(?:head/)?(neck|decode_head)/(lateral|output)(\d)',
        lambda part, kind, i: f'{part}.{_IN_PYRAMID[kind]}.{int(i) - 1}',
    ),
    _in_head(  # odd indices are upsampling layers
        r'decode_head/level(\d)_conv(\d)',
        lambda i, j: f'decode_head.scale_heads.{int(i) - 1}.{2 * int(j)}',
    ),
    _in_head(
        r'decode_head/pool(\d)',
        lambda bins: f'decode_head.psp_modules.{POOLED.index(int(bins))}.1',
    ),
    _in_head('decode_head/pyramid_pooling', lambda: 'decode_head.bottleneck'),
    _in_head('decode_head/fusion', lambda: 'decode_head.fpn_bottleneck'),
    _in_head('auxiliary_head/conv', lambda: 'auxiliary_head.convs.0'),
    # Detectors. RetinaNet stores its two coarsest levels behind three others.
    (r'head/coarse_(\d)', lambda i: f'neck.fpn_convs.{int(i) + 3}.conv'),
    (r'head/class_tower_(\d+)', lambda i: f'bbox_head.cls_convs.{i}.conv'),
    (r'head/box_tower_(\d+)', lambda i: f'bbox_head.reg_convs.{i}.conv'),
    (r'head/classes', lambda: 'bbox_head.retina_cls'),
    (r'head/boxes', lambda: 'bbox_head.retina_reg'),
    (r'head/rpn/(\w+)', lambda layer: f'rpn_head.{_IN_RPN[layer]}'),
    _in_head(
        r'head/box_heads_(\d)/convs_(\d)',
        lambda stage, i: f'roi_head.bbox_head.{stage}.shared_convs.{i}',
    ),
    (
        r'head/box_heads_(\d)/(\w+)',
        lambda stage, layer: f'roi_head.bbox_head.{stage}.{_IN_BOXES[layer]}',
    ),
    (
        r'head/mask_heads_(\d)/(\w+)',
        lambda stage, layer: f'roi_head.mask_head.{stage}.{_IN_MASKS[layer]}',
    ),
)


@dataclasses.dataclass(frozen=True)
class Match:
  """How a state dict fits a model; names are those of the state dict.

  Attributes:
    arrays: Our arrays by path, such as 'params/stem/conv0/kernel'.
    missing: Names that only the model has.
    unexpected: Names that only the state dict has.
    mismatched: Names that both have, with a description of the difference or of
      values that are not finite, and names that only the state dict has in the
      neck or a head of a segmenter or detector.
  """

  arrays: dict[str, np.ndarray]
  missing: list[str]
  unexpected: list[str]
  mismatched: dict[str, str]

  @property
  def is_whole(self) -> bool:
    """Whether the state dict has every array of the model."""
    return not (self.missing or self.mismatched)

  @property
  def variables(self) -> dict[str, Any]:
    """The arrays as the tree that `model.apply` takes."""
    return traverse_util.unflatten_dict(
        {path: jnp.asarray(array) for path, array in self.arrays.items()},
        sep='/',
    )

  def lines(self) -> list[str]:
    """Returns the report: the number of arrays loaded, and all other names."""
    return [
        f'loaded: {len(self.arrays)} arrays',
        *(f'missing: {name}' for name in self.missing),
        *(f'unexpected: {ascii(name)[1:-1]}' for name in self.unexpected),
        *(f'differs: {name}: {how}' for name, how in self.mismatched.items()),
    ]


def match_state_dict(
    state_dict: Mapping[str, np.ndarray], model: Backbone | Segmenter | Detector
) -> Match:
  """Finds each array of an RMT in a state dict by the released names.

  Raises:
    ValueError: If the model is not an RMT.
  """
  arrays, missing, mismatched = {}, [], {}
  expected = set()
  for path, (key, shape) in _released_names(model).items():
    expected.add(key)
    if key not in state_dict:
      missing.append(key)
      continue
    array = np.asarray(state_dict[key])
    wanted = to_torch(key, np.broadcast_to(0, shape)).shape
    if array.shape != wanted:
      mismatched[key] = f'shape {array.shape}, the model has {wanted}'
      continue
    arrays[path] = np.ascontiguousarray(from_torch(key, array), np.float32)
    if not np.isfinite(arrays[path]).all():
      mismatched[key] = 'not all values are finite'
  for key, table in _tables(model).items():
    expected.add(key)
    if key in state_dict:
      array = np.asarray(state_dict[key])
      is_float = jnp.issubdtype(array.dtype, jnp.floating)
      rounding = max(1e-5, jnp.finfo(array.dtype).eps if is_float else 0)
      array = array.astype(np.float32)
      if array.shape != table.shape:
        mismatched[key] = f'shape {array.shape}, the model has {table.shape}'
      elif not np.allclose(array, table, rtol=rounding, atol=_TABLE_ERROR):
        mismatched[key] = f'{array.tolist()}, the model has {table.tolist()}'
  unexpected = [
      key
      for key in state_dict
      if key not in expected and not key.endswith(_COUNTER)
  ]
  if isinstance(model, DenseModel):  # One more layer computes something else.
    for key in unexpected:
      if key.startswith(_HEADS):
        mismatched[key] = 'the model has no such array'
    unexpected = [key for key in unexpected if key not in mismatched]
  return Match(arrays, missing, unexpected, mismatched)


def from_torch_state_dict(
    state_dict: Mapping[str, np.ndarray], model: Backbone | Segmenter | Detector
) -> dict[str, Any]:
  """Returns a model's variables from a state dict of the released RMT.

  Args:
    state_dict: Arrays in PyTorch's layout by the released names.
    model: An RMT of the same sizes, or a segmenter or detector over one.

  Returns:
    `{'params', 'batch_stats'}`, float32, for `model.apply`.

  Raises:
    ValueError: If the model is not an RMT, or if arrays are missing,
      unexpected, of another shape or not finite; the message lists them all.
  """
  match = match_state_dict(state_dict, model)
  if not match.is_whole or match.unexpected:
    raise ValueError('; '.join(match.lines()))
  return match.variables


def to_torch_state_dict(
    variables: Mapping[str, Any], model: Backbone | Segmenter | Detector
) -> dict[str, np.ndarray]:
  """Returns a state dict that the released RMT code loads with `strict=True`.

  Raises:
    ValueError: If the model is not an RMT, or a classifier with another head.
  """
  names = _released_names(model)
  if isinstance(model, Backbone) and model.num_classes:
    if model.arch.head != 'proj':
      raise ValueError(
          f'The released RMT code has no head={model.arch.head!r}, only '
          "head='proj'."
      )
  flat = traverse_util.flatten_dict(dict(variables), sep='/')
  state_dict = {}
  for path, (key, _) in names.items():
    array = np.asarray(jax.device_get(flat[path]), np.float32)
    state_dict[key] = np.ascontiguousarray(to_torch(key, array))
    if key.endswith('.running_var'):
      counter = key.removesuffix('.running_var') + _COUNTER
      state_dict[counter] = np.zeros((), np.int64)
  return state_dict | _tables(model)


def check_is_rmt(arch: Architecture) -> None:
  """Refuses models that compute anything but the released RMT.

  Raises:
    ValueError: If fields differ; the message lists them.
  """
  released = named.MODELS['rmt_t']
  differing = [
      f'{field.name}={getattr(arch, field.name)!r}'
      for field in dataclasses.fields(arch)
      if field.name not in _MAY_DIFFER
      and getattr(arch, field.name) != getattr(released, field.name)
  ]
  if differing:
    raise ValueError(
        'Only RMT has names in the released PyTorch code; this model has '
        f'{", ".join(differing)}.'
    )


def released_name(path: str) -> str:
  """Returns the released name of an array.

  Args:
    path: Our path below the collection, such as 'stage1/block00/ffn/up/kernel'.
      Heads on boxes are numbered as those of Cascade Mask R-CNN; Mask R-CNN
      leaves out the number.

  Raises:
    ValueError: If the released RMT has no such array.
  """
  part, _, rest = path.partition('/')
  if part == _BACKBONE:
    return f'{_BACKBONE}.{released_name(rest)}'
  module, _, leaf = path.rpartition('/')
  for pattern, name in _MODULES:
    match = re.fullmatch(pattern, module)
    if match and leaf in _LEAVES and (found := name(*match.groups())):
      return f'{found}.{_LEAVES[leaf]}'
  raise ValueError(f'The released RMT has no counterpart of {path}.')


def from_torch(key: str, array: np.ndarray) -> np.ndarray:
  """Returns the released array `key` in our layout."""
  if key.endswith(_LAYER_SCALES):
    return array.reshape(-1)
  if key.endswith(_TRANSPOSED):
    return array.transpose(2, 3, 0, 1)
  if key.endswith(_READS_BOXES):
    pooled = array.reshape(len(array), -1, BOX_BINS, BOX_BINS)
    return pooled.transpose(2, 3, 1, 0).reshape(-1, len(array))
  # The transpose of a vector is the vector.
  return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def to_torch(key: str, array: np.ndarray) -> np.ndarray:
  """Returns one of our arrays in the layout of the released `key`."""
  if key.endswith(_LAYER_SCALES):
    return array.reshape(1, 1, 1, -1)
  if key.endswith(_TRANSPOSED):
    return array.transpose(2, 3, 0, 1)
  if key.endswith(_READS_BOXES):
    pooled = array.reshape(BOX_BINS, BOX_BINS, -1, array.shape[-1])
    return pooled.transpose(3, 2, 0, 1).reshape(array.shape[-1], -1)
  return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def _released_names(model):
  """Returns `{our path: (released name, our shape)}` for every array."""
  check_is_rmt(model.arch)
  shapes = factory.variable_shapes(model)
  names = {}
  for path, leaf in traverse_util.flatten_dict(shapes, sep='/').items():
    name = released_name(path.partition('/')[2])
    if isinstance(model, Detector) and not getattr(
        model.head, 'is_cascade', False
    ):
      name = re.sub(r'(roi_head\.\w+)\.0', r'\1', name)
    names[path] = name, leaf.shape
  return names


def _tables(model: Backbone | Segmenter | Detector) -> dict[str, np.ndarray]:
  """Returns the buffers that the released code stores for each stage.

  `angle` holds the rotary angles of a head's channels, `decay` the `log gamma`
  of each head.
  """
  tables, arch = {}, model.arch
  inside = f'{_BACKBONE}.' if isinstance(model, DenseModel) else ''
  for stage, (width, heads, spread) in enumerate(
      zip(arch.widths, arch.num_heads, arch.decay_ranges, strict=True)
  ):
    angles = positions.interleaved_frequencies(width // heads).repeat(2)
    log_decay = np.log(positions.decay_rates(heads, spread))
    prefix = f'{inside}layers.{stage}.Relpos'
    tables[f'{prefix}.angle'] = angles.astype(np.float32)
    tables[f'{prefix}.decay'] = log_decay.astype(np.float32)
  return tables
