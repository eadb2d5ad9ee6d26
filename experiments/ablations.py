"""Names of models in tables: a base and a switch of `configs/ablation.py`."""

from collections.abc import Mapping
import pathlib
import runpy
from typing import Any

from gswinrmt_jax.models import named

_RECIPE = pathlib.Path(__file__).parents[1] / 'configs' / 'ablation.py'
_recipe = runpy.run_path(str(_RECIPE))
BASES: Mapping[str, Any] = _recipe['BASES']
SWITCHES: Mapping[str, Mapping[str, Any]] = _recipe['SWITCHES']
changed_fields = _recipe['changed_fields']

# Fields that change the size of a model, not its design.
_SIZES = frozenset('widths depths num_heads mlp_ratios drop_path_rate'.split())
# Fields that change how it is trained.
TRAINING = frozenset({'linear_start'})
# Fields that depend on the task: a segmenter normalises its feature maps.
_TASK = frozenset({'feature_norm'})


def size_of(name: str) -> str:
  """Returns the size in the name of a model, 's' of `rmt_s` and `rmt_s_tl`."""
  return name.removesuffix('_tl').rpartition('_')[2]


def sizes(model: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the sizes in which a model differs from its named model.

  Args:
    model: `name` and every field, as in the config of a run.
  """
  differing = _differing(model)
  return {key: differing[key] for key in sorted(_SIZES & differing.keys())}


def design(model: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the other fields in which a model differs from its named model."""
  others = _SIZES | TRAINING | _TASK
  return {k: value for k, value in _differing(model).items() if k not in others}


def _differing(model):
  origin = named.MODELS[model['name']]
  return {
      key: value
      for key, value in model.items()
      if key != 'name' and value != getattr(origin, key)
  }


def label(model: Mapping[str, Any]) -> str:
  """Returns a model's name in tables: `retention,no_gate`, or the base alone.

  A model that matches no switch is named by its changed fields:
  `retention,window_size=4`.
  """
  name, family = model['name'], model['name'].rpartition('_')[0]
  changed = design(model)
  for base, switches in SWITCHES.items():
    for switch in switches if BASES[base].family == family else ():
      if changed == _differing({'name': name, **changed_fields(base, switch)}):
        return join(base, switch)
  words = [family if family in BASES else name]
  return ','.join(words + [f'{k}={_short(v)}' for k, v in changed.items()])


def join(base: str, switch: str) -> str:
  """Returns `retention,no_gate`, or the base alone if nothing is changed."""
  return base if switch == 'base' else f'{base},{switch}'


def _short(value):
  """Returns a value as text; a value shared by all stages appears once."""
  equal = isinstance(value, tuple) and len(set(value)) == 1
  return f'{value[0] if equal else value}'.replace(' ', '')
