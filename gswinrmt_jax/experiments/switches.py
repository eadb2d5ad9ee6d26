"""The single-component ablations, as data: what each changes of its base.

The Gated-SwinRMT paper compares whole models (its Tables 7 and 8). Here each
component is added to, or taken from, one model at a time, from three ends: a
bare RMT, the full RMT, and the two gated models.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from gswinrmt_jax.models import named

BASE = 'base'  # the switch that changes nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
  """What an ablation starts from.

  Attributes:
    family: A named model, without its size.
    fields: What is changed of it.
    label: In tables and pictures.
  """

  family: str
  fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  label: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switch:
  """One change of a base.

  Attributes:
    fields: What is changed, besides what the base changes.
    label: In tables and pictures.
    against: The switch of the same base that it is compared with: one that
      has the same fields but for the component in question.
    idle: Why it changes no output at 32x32 pixels; '' if it does.
  """

  fields: Mapping[str, Any]
  label: str
  against: str = BASE
  idle: str = ''


BASES = {
    'bare': Base(
        family='rmt',
        fields={'position_conv': False, 'lce': 'none', 'rotary': 'none'},
        label='bare RMT (no CPE, LCE, rotation)',
    ),
    'rmt': Base(family='rmt', label='RMT'),
    'retention': Base(family='retention', label='Retention'),
    'swat': Base(family='swat', label='SWAT'),
}

_NOTHING = {BASE: Switch(fields={}, label='unchanged')}
_FITS = 'maps of at most 8x8 fit into a window of 14'
# RMT's last stage attends over all pairs at once, which takes neither sigmoid
# nor ALiBi: with them it goes by rows and columns, and so does what they are
# compared with.
_ADDED = {
    'decomposed': Switch(
        fields={'full_stages': ()}, label='stage 4 by rows and columns'
    ),
    'gate': Switch(fields={'gate': True}, label='+ G1 gate'),
    'swiglu': Switch(fields={'swiglu': True}, label='+ SwiGLU on V'),
    'sigmoid': Switch(
        fields={'score_fn': 'sigmoid', 'full_stages': ()},
        label='sigmoid for softmax',
        against='decomposed',
    ),
    'alibi_signed': Switch(
        fields={'alibi': 'signed', 'full_stages': ()},
        label='+ signed ALiBi',
        against='decomposed',
    ),
    'alibi_absolute': Switch(
        fields={'alibi': 'absolute', 'full_stages': ()},
        label='+ absolute ALiBi',
        against='decomposed',
    ),
    'learned_decay': Switch(fields={'decay': 'learned'}, label='learned decay'),
    'no_decay': Switch(fields={'decay': 'none'}, label='without decay'),
    'layer_scale': Switch(
        fields={'layer_scale': (1e-2,) * 4}, label='+ LayerScale'
    ),
    'window_14': Switch(
        fields={'window_size': 14}, label='+ windows of 14', idle=_FITS
    ),
    'window_7': Switch(fields={'window_size': 7}, label='+ windows of 7'),
    'window_4': Switch(fields={'window_size': 4}, label='+ windows of 4'),
}
_CHANGED = {
    'no_position_conv': Switch(
        fields={'position_conv': False}, label='without CPE'
    ),
    'no_lce': Switch(fields={'lce': 'none'}, label='without LCE'),
    'lce_depthwise': Switch(
        fields={'lce': 'depthwise'}, label='LCE without its 1x1'
    ),
    'alibi_absolute': Switch(
        fields={'alibi': 'absolute'}, label='absolute ALiBi'
    ),
    'no_rotary': Switch(fields={'rotary': 'none'}, label='without rotation'),
    'decay_fixed': Switch(fields={'decay': 'fixed'}, label='fixed decay'),
    'no_decay': Switch(fields={'decay': 'none'}, label='without decay'),
    'no_shift': Switch(
        fields={'shift': False}, label='without shift', idle=_FITS
    ),
    'window_7': Switch(fields={'window_size': 7}, label='windows of 7'),
    'window_7_no_shift': Switch(
        fields={'window_size': 7, 'shift': False},
        label='windows of 7, no shift',
        against='window_7',
    ),
    'window_4': Switch(fields={'window_size': 4}, label='windows of 4'),
    'window_4_no_shift': Switch(
        fields={'window_size': 4, 'shift': False},
        label='windows of 4, no shift',
        against='window_4',
    ),
}
SWITCHES: Mapping[str, Mapping[str, Switch]] = {
    'bare': {
        **_NOTHING,
        'position_conv': Switch(fields={'position_conv': True}, label='+ CPE'),
        'lce': Switch(
            fields={'lce': 'depthwise'}, label='+ LCE without its 1x1'
        ),
        'lce_pointwise': Switch(fields={'lce': 'pointwise'}, label='+ LCE'),
        'rotary': Switch(fields={'rotary': 'interleaved'}, label='+ rotation'),
        **_ADDED,
    },
    'rmt': {**_NOTHING, **_ADDED},
    'retention': {
        **_NOTHING,
        'no_gate': Switch(fields={'gate': False}, label='without G1 gate'),
        'swiglu': Switch(fields={'swiglu': True}, label='+ SwiGLU on V'),
        'sigmoid': Switch(
            fields={'score_fn': 'sigmoid'}, label='sigmoid for softmax'
        ),
        'alibi_signed': Switch(
            fields={'alibi': 'signed'}, label='+ signed ALiBi'
        ),
        'rotary_split_half': Switch(
            fields={'rotary': 'split_half'}, label='rotation per axis'
        ),
        **_CHANGED,
    },
    'swat': {
        **_NOTHING,
        'no_swiglu': Switch(
            fields={'swiglu': False}, label='without SwiGLU on V'
        ),
        'gate': Switch(fields={'gate': True}, label='+ G1 gate'),
        'softmax': Switch(
            fields={'score_fn': 'softmax'}, label='softmax for sigmoid'
        ),
        'scaled': Switch(fields={'scaled': True}, label='scores over √d'),
        'no_alibi': Switch(fields={'alibi': 'none'}, label='without ALiBi'),
        'rotary_interleaved': Switch(
            fields={'rotary': 'interleaved'}, label='rotation by position'
        ),
        **_CHANGED,
    },
}
# What a check of the fields refuses: fields, and why.
LEFT_OUT: Mapping[tuple[str, str], tuple[Mapping[str, Any], str]] = {
    (base, 'rotary_split_half'): (
        {'rotary': 'split_half'},
        'its stage 4 attends over all pairs, which have no axis to rotate on',
    )
    for base in ('bare', 'rmt')
}

# Fields that make a model of another size or speed, not another system.
_SIZES = frozenset(
    'widths depths num_heads mlp_ratios drop_path_rate attention_impl '
    'depthwise_impl ffn_impl'.split()
)


def fields(base: str, switch: str) -> dict[str, Any]:
  """Returns what a switch changes of its base's named model.

  Raises:
    ValueError: If there is no such base or switch; lists them.
  """
  if base not in BASES:
    raise ValueError(f"no base '{base}': {', '.join(BASES)}")
  if (base, switch) in LEFT_OUT:
    raise ValueError(
        f"'{base},{switch}' is left out: {LEFT_OUT[base, switch][1]}"
    )
  if switch not in SWITCHES[base]:
    raise ValueError(
        f"{base} has no switch '{switch}': {', '.join(SWITCHES[base])}"
    )
  return {**BASES[base].fields, **SWITCHES[base][switch].fields}


def changes(model: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the components in which a model differs from its named one.

  Args:
    model: `name` and every field, as in the config of a run.
  """
  origin = named.MODELS[model['name']]
  return {
      field: value
      for field, value in model.items()
      if field != 'name'
      and field not in _SIZES
      and value != getattr(origin, field)
  }


def sizes(model: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the sizes in which a model differs from its named one."""
  origin = named.MODELS[model['name']]
  return {
      field: model[field]
      for field in sorted(_SIZES)
      if model[field] != getattr(origin, field) and not field.endswith('_impl')
  }


def recognize(model: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Returns the bases and switches that make this model; none if none do."""
  family, changed = model['name'].rpartition('_')[0], changes(model)
  origin = named.MODELS[model['name']]
  found = []
  for base, switches in SWITCHES.items():
    if BASES[base].family != family:
      continue
    for switch in switches:
      asked = {
          field: value
          for field, value in fields(base, switch).items()
          if value != getattr(origin, field)
      }
      if asked == changed:
        found.append((base, switch))
  return found


def label(model: Mapping[str, Any]) -> str:
  """Returns a model's name in tables: `retention,no_gate`, its base alone.

  One that no switch makes is named by its fields: `retention,window_size=4`.
  """
  found = recognize(model)
  if found:
    base, switch = found[0]
    return base if switch == BASE else f'{base},{switch}'
  family = model['name'].rpartition('_')[0]
  name = family if family in BASES else model['name']
  changed = (f'{key}={_short(of)}' for key, of in changes(model).items())
  return ','.join([name, *changed])


def _short(value):
  """Returns a value as text; of one for each stage, all alike, the one."""
  alike = isinstance(value, tuple) and len(set(value)) == 1
  return f'{value[0] if alike else value}'.replace(' ', '')
