"""Which RMT a PyTorch checkpoint holds, told from its names and shapes."""

from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any

import numpy as np

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import named

RELEASED = (
    *('rmt_t', 'rmt_s', 'rmt_b', 'rmt_l'),
    *('rmt_s_tl', 'rmt_b_tl', 'rmt_l_tl'),
)
# Where training scripts keep the weights among other things, in this order.
WRAPPERS = ('model', 'state_dict', 'model_ema', 'state_dict_ema', 'module')
_PREFIXES = ('module.', '_orig_mod.', 'backbone.', 'encoder.')
_BLOCK = re.compile(r'layers\.(\d)\.blocks\.(\d{1,4})\.')
_MAX_DEPTH = 4
# By these the released models are told apart.
_SIZES = ('widths', 'depths', 'num_heads', 'mlp_ratios')
_FIRST = 'layers.{}.blocks.0.'


@dataclasses.dataclass(frozen=True)
class Recognised:
  """A named model and what in it differs.

  Attributes:
    name: One of `RELEASED`.
    fields: Fields of `Architecture` to change.
    num_classes: 0 where the checkpoint has no head.
  """

  name: str
  fields: dict[str, Any]
  num_classes: int


def unwrap(
    loaded: Any, key: str | None = None
) -> tuple[str, dict[str, np.ndarray], int]:
  """Finds the state dict in what a checkpoint file holds.

  Args:
    loaded: As `torch_file.read` returns it.
    key: Its entry to take; None takes the first of `WRAPPERS` there is.

  Returns:
    Where it was ('' for the top), the arrays of the backbone and its head
    without prefixes such as 'module.', and how many arrays of other parts (a
    detector's neck and heads) were left out.

  Raises:
    UserError: If there are no arrays, or no entry `key`.
  """
  where = ''
  for _ in range(_MAX_DEPTH):  # a crafted file can hold itself
    if not isinstance(loaded, Mapping):
      break
    names = [key] if key else WRAPPERS
    # First the wrappers: a lone tensor may lie beside them.
    found = [n for n in names if isinstance(loaded.get(n), Mapping)]
    if found:
      where = f'{where}/{found[0]}' if where else found[0]
      loaded, key = loaded[found[0]], None
      continue
    arrays = {
        name: value
        for name, value in loaded.items()
        if isinstance(name, str) and isinstance(value, np.ndarray)
    }
    if arrays and key is None:
      return where, *_backbone(arrays)
    break
  entries = loaded if isinstance(loaded, Mapping) else ()
  # Whatever else a crafted file has for keys might print without end.
  names = [ascii(n[:40])[1:-1] for n in entries if isinstance(n, str)][:10]
  wanted = f'no entry {key}' if key else 'no weights'
  raise UserError(
      f'{wanted} in the checkpoint (entries: {", ".join(names) or "none"})'
  )


def _backbone(arrays, depth=_MAX_DEPTH):
  """Strips prefixes; in a detector, takes the backbone only."""
  if not depth:
    return arrays, 0
  for prefix in _PREFIXES:
    inside = {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
    if inside:
      found, others = _backbone(inside, depth - 1)
      return found, others + len(arrays) - len(inside)
  return arrays, 0


def recognise(
    state_dict: Mapping[str, np.ndarray],
    full_stages: Sequence[int] | None = None,
) -> Recognised:
  """Tells the model from its arrays.

  Args:
    state_dict: Arrays by the released names.
    full_stages: Stages that attend over all pairs of tokens. No array tells
      them: a model that is none of `RELEASED` needs them said.

  Raises:
    UserError: If it is no RMT, or one of unknown sizes and no `full_stages`.
  """
  try:
    fields = _sizes(state_dict)
  except KeyError as error:
    raise UserError(f'the checkpoint is no RMT: it has no {error}') from None
  except (IndexError, TypeError, ValueError, ZeroDivisionError) as error:
    raise UserError(
        'the checkpoint is no RMT: its arrays have other shapes'
    ) from error
  num_classes = 0
  if np.ndim(state_dict.get('head.weight')) == 2:
    num_classes = len(state_dict['head.weight'])
    fields['head'] = 'proj' if 'proj.weight' in state_dict else 'norm'
    fields['dense_head'] = np.ndim(state_dict.get('aux_head.weight')) == 2
  if full_stages is not None:
    fields['full_stages'] = tuple(full_stages)
  found = [
      Recognised(name, _changed(fields, name), num_classes)
      for name in RELEASED
      if not _changed(fields, name).keys() & set(_SIZES)
  ]
  if found:  # with and without a dense head
    return min(found, key=lambda known: len(known.fields))
  if 'num_heads' not in fields:
    raise UserError(
        f'an RMT of widths {fields["widths"]} is none of '
        f'{", ".join(RELEASED)}, and without its buffers '
        '(layers.0.Relpos.decay) its heads are not known'
    )
  if full_stages is None:
    raise UserError(
        f'an RMT of widths {fields["widths"]} and depths {fields["depths"]} is '
        f'none of {", ".join(RELEASED)}; say which of its stages attend over '
        'all pairs of tokens: --full-stages 3,4'
    )
  return Recognised('rmt_t', fields, num_classes)


def _changed(fields, name):
  """Returns the fields that differ from the named model's."""
  arch = named.MODELS[name]
  return {
      field: value
      for field, value in fields.items()
      if value != getattr(arch, field)
  }


def _sizes(state_dict):
  """Returns the fields that shapes, and the decays, tell."""
  depths = [0, 0, 0, 0]
  for name in state_dict:
    match = _BLOCK.match(name)
    if match and int(match[1]) < 4:
      stage, index = int(match[1]), int(match[2])
      depths[stage] = max(depths[stage], index + 1)
  shapes = {name: array.shape for name, array in state_dict.items()}
  firsts = [_FIRST.format(stage) for stage in range(4)]
  widths = [shapes[f'{first}pos.conv.weight'][0] for first in firsts]
  hidden = [shapes[f'{first}ffn.fc1.weight'][0] for first in firsts]
  fields = {
      'widths': tuple(widths),
      'depths': tuple(depths),
      'mlp_ratios': tuple(
          inner / width for inner, width in zip(hidden, widths, strict=True)
      ),
      'layer_scale': tuple(
          1e-6 if f'{first}gamma_1' in shapes else 0.0 for first in firsts
      ),
      'ffn_norm': f'{firsts[0]}ffn.ffn_layernorm.weight' in shapes,
      'feature_norm': 'extra_norms.0.weight' in shapes,
  }
  # Buffers: some scripts save parameters alone.
  decays = [state_dict.get(f'layers.{n}.Relpos.decay') for n in range(4)]
  if all(decay is not None for decay in decays):
    fields['num_heads'] = tuple(len(decay) for decay in decays)
    fields['decay_ranges'] = tuple(_decay_range(decay) for decay in decays)
  if 'proj.weight' in shapes:
    fields['projection'] = shapes['proj.weight'][0]
  return fields


def _decay_range(log_decay: np.ndarray) -> float:
  """Solves `gamma_1 = 1 - 2 ** (-2 - r / N)` for `r`, to a thousandth."""
  if len(log_decay) == 1:
    return 4.0  # One head is at 0.75 whatever the range.
  with np.errstate(all='ignore'):  # What comes of nonsense is refused later.
    gamma = np.exp(np.float64(log_decay[1]))
    return round(float((-2 - np.log2(1 - gamma)) * len(log_decay)), 3)
