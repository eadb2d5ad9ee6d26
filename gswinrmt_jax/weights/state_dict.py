"""RMT weights in and out, under the names of the released PyTorch code."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from gswinrmt_jax.models import factory
from gswinrmt_jax.models.architecture import Architecture
from gswinrmt_jax.models.backbone import Backbone
from gswinrmt_jax.ops import decay as decay_lib
from gswinrmt_jax.ops import rotary
from gswinrmt_jax.weights import rmt_names

# What RMT is: with another value the same arrays would mean something else.
_RMT_FIELDS = {
    'stem': 'conv',
    'downsample': 'conv',
    'ffn_conv': True,
    'head_norm': False,
    'position_conv': True,
    'score_fn': 'softmax',
    'scaled': True,
    'rotary': 'interleaved',
    'alibi': 'none',
    'decay': 'fixed',
    'lce': 'depthwise',
    'gate': False,
    'swiglu': False,
    'window_size': 0,
}
_COUNTER = '.num_batches_tracked'
# The released code makes its tables in float32: log(1 - 2^-k) near 0 keeps the
# rounding of its argument.
_TABLE_ERROR = 1e-6


@dataclasses.dataclass(frozen=True)
class Match:
  """What of a state dict fits a model; names are those of the state dict.

  Attributes:
    arrays: Ours by path, 'params/stem/conv0/kernel'.
    missing: The model has it, the state dict does not.
    unexpected: The state dict has it, the model does not.
    mismatched: Both have it, but not alike; with what differs.
  """

  arrays: dict[str, np.ndarray]
  missing: list[str]
  unexpected: list[str]
  mismatched: dict[str, str]

  @property
  def is_complete(self) -> bool:
    """Whether the two have the same arrays."""
    return self.is_whole and not self.unexpected

  @property
  def is_whole(self) -> bool:
    """Whether all of the model is there."""
    return not (self.missing or self.mismatched)

  @property
  def variables(self) -> dict[str, Any]:
    """The arrays as the tree that `model.apply` takes."""
    return traverse_util.unflatten_dict(
        {path: jnp.asarray(array) for path, array in self.arrays.items()},
        sep='/',
    )

  def lines(self) -> list[str]:
    """Returns the report: how much was loaded, and every other name."""
    lines = [f'loaded: {len(self.arrays)} arrays']
    lines += [f'missing: {name}' for name in self.missing]
    lines += [f'unexpected: {ascii(name)[1:-1]}' for name in self.unexpected]
    lines += [
        f'differs: {name}: {how}' for name, how in self.mismatched.items()
    ]
    return lines


def match_state_dict(
    state_dict: Mapping[str, np.ndarray], model: Backbone
) -> Match:
  """Finds each array of a model in a state dict of the released RMT.

  Args:
    state_dict: Arrays in PyTorch's layout by the released names.
    model: An RMT.

  Raises:
    ValueError: If the model is not an RMT.
  """
  arrays, missing, mismatched = {}, [], {}
  expected = set()
  for path, (name, shape) in _names(model).items():
    expected.add(name.key)
    if name.key not in state_dict:
      missing.append(name.key)
      continue
    array = np.asarray(state_dict[name.key])
    wanted = name.to_torch(np.broadcast_to(0, shape)).shape
    if array.shape != wanted:
      mismatched[name.key] = f'shape {array.shape}, the model has {wanted}'
    else:
      arrays[path] = np.ascontiguousarray(name.from_torch(array), np.float32)
  for key, buffer in _buffers(model.arch).items():
    expected.add(key)
    if key in state_dict:
      array = np.asarray(state_dict[key], np.float32)
      if array.shape != buffer.shape:
        mismatched[key] = f'shape {array.shape}, the model has {buffer.shape}'
      elif not np.allclose(array, buffer, rtol=1e-5, atol=_TABLE_ERROR):
        mismatched[key] = f'{array.tolist()}, the model has {buffer.tolist()}'
  unexpected = [
      key
      for key in state_dict
      if key not in expected and not key.endswith(_COUNTER)
  ]
  return Match(arrays, missing, unexpected, mismatched)


def from_torch_state_dict(
    state_dict: Mapping[str, np.ndarray], model: Backbone
) -> dict[str, Any]:
  """Returns a model's variables, from a state dict of the released RMT.

  Args:
    state_dict: Arrays in PyTorch's layout by the released names.
    model: An RMT of the same sizes.

  Returns:
    `{'params', 'batch_stats'}`, float32, for `model.apply`.

  Raises:
    ValueError: If the model is not an RMT, or an array is missing, left over or
      of another shape; names them all.
  """
  found = match_state_dict(state_dict, model)
  if not found.is_complete:
    raise ValueError('; '.join(found.lines()))
  return found.variables


def to_torch_state_dict(
    variables: Mapping[str, Any], model: Backbone
) -> dict[str, np.ndarray]:
  """Returns a state dict that the released RMT code loads, strictly.

  Args:
    variables: Those of `model`.
    model: An RMT.

  Raises:
    ValueError: If the model is not an RMT.
  """
  flat = traverse_util.flatten_dict(dict(variables), sep='/')
  state_dict = {}
  for path, (name, _) in _names(model).items():
    array = np.asarray(jax.device_get(flat[path]), np.float32)
    state_dict[name.key] = np.ascontiguousarray(name.to_torch(array))
    if name.key.endswith('running_var'):
      counter = name.key.removesuffix('.running_var') + _COUNTER
      state_dict[counter] = np.zeros((), np.int64)
  return state_dict | _buffers(model.arch)


def _names(model: Backbone) -> dict[str, tuple[rmt_names.Name, tuple]]:
  """Returns the released name and our shape of each array, by our path."""
  check_is_rmt(model.arch)
  least = model.arch.stride
  shapes = factory.variable_shapes(model, (least, least, 3))
  return {
      path: (rmt_names.find(path.partition('/')[2]), leaf.shape)
      for path, leaf in traverse_util.flatten_dict(shapes, sep='/').items()
  }


def check_is_rmt(arch: Architecture) -> None:
  """Refuses what computes something else than the released RMT.

  Raises:
    ValueError: Names the fields that differ.
  """
  differing = [
      f'{field}={getattr(arch, field)!r}'
      for field, value in _RMT_FIELDS.items()
      if getattr(arch, field) != value
  ]
  if differing:
    raise ValueError(
        'Only RMT has names in the released PyTorch code; this model has '
        f'{", ".join(differing)}.'
    )


def _buffers(arch: Architecture) -> dict[str, np.ndarray]:
  """Returns what the released code keeps beside the parameters, per stage.

  `angle`: rotary angles of a head's channels; `decay`: `log gamma` of heads.
  """
  buffers = {}
  for stage, (width, heads, spread) in enumerate(
      zip(arch.widths, arch.num_heads, arch.decay_ranges, strict=True)
  ):
    angles = rotary.interleaved_frequencies(width // heads).repeat(2)
    log_decay = np.log(decay_lib.decay_rates(heads, spread))
    prefix = f'layers.{stage}.Relpos'
    buffers[f'{prefix}.angle'] = angles.astype(np.float32)
    buffers[f'{prefix}.decay'] = log_decay.astype(np.float32)
  return buffers
