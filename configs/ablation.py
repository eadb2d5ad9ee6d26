"""Ablation of one component on CIFAR-10, by the default reading of Table 2.

  python train.py --config=configs/ablation.py:retention,no_gate

The argument is `BASE,SWITCH`: the base model (bare, rmt, retention or swat) and
the change to it (see docs/experiments.md; `base` changes nothing). On
Mini-ImageNet, with the large models:

  python train.py --config=configs/ablation.py:retention,no_gate,mini

A smoke test, which trains a tiny model in under a minute:

  python train.py --config=configs/ablation.py:retention,no_gate,smoke

Result: four switches of a smaller Retention after two epochs, none of them more
than noise (docs/reproduction.md, "Ablations on CIFAR-10"); else not measured.

The Gated-SwinRMT paper compares whole models (its Tables 7 and 8). Here, one
component at a time is added to or removed from a base: a bare RMT, the full
RMT, or one of the two gated models.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError


class Base(NamedTuple):
  """The model that an ablation starts from.

  Attributes:
    family: A named model, without its size.
    label: Name in tables.
    fields: Fields changed in the named model.
  """

  family: str
  label: str
  fields: Mapping[str, Any]


class Switch(NamedTuple):
  """One change of a base.

  Attributes:
    label: Name in tables.
    fields: Fields changed in addition to those of the base.
    against: Switch of the same base to compare with; the two differ only in the
      component in question.
    idle: Whether it changes no output at 32x32 pixels, where feature maps of at
      most 8x8 tokens fit into a window of 14.
  """

  label: str
  fields: Mapping[str, Any]
  against: str = 'base'
  idle: bool = False


def _switch(label, *, against='base', idle=False, **fields):
  return Switch(label, fields, against, idle)


_BARE = {'position_conv': False, 'lce': 'none', 'rotary': 'none'}
BASES = {
    'bare': Base('rmt', 'bare RMT (no CPE, LCE, rotation)', _BARE),
    'rmt': Base('rmt', 'RMT', {}),
    'retention': Base('retention', 'Retention', {}),
    'swat': Base('swat', 'SWAT', {}),
}

_NOTHING = {'base': _switch('unchanged')}
# RMT's last stage attends over all pairs at once, which supports neither
# sigmoid nor ALiBi. With these it attends by rows and columns, and so does the
# switch 'decomposed', which they are compared with.
_BY_AXES = {'full_stages': (), 'against': 'decomposed'}
_ADDED = {
    'decomposed': _switch('stage 4 by rows and columns', full_stages=()),
    'gate': _switch('+ G1 gate', gate=True),
    'swiglu': _switch('+ SwiGLU on V', swiglu=True),
    'sigmoid': _switch('sigmoid for softmax', score_fn='sigmoid', **_BY_AXES),
    'alibi_signed': _switch('+ signed ALiBi', alibi='signed', **_BY_AXES),
    'alibi_absolute': _switch('+ absolute ALiBi', alibi='absolute', **_BY_AXES),
    'learned_decay': _switch('learned decay', decay='learned'),
    'no_decay': _switch('without decay', decay='none'),
    'layer_scale': _switch('+ LayerScale', layer_scale=(1e-2,) * 4),
    'window_14': _switch('+ windows of 14', window_size=14, idle=True),
    'window_7': _switch('+ windows of 7', window_size=7),
    'window_4': _switch('+ windows of 4', window_size=4),
}
_CHANGED = {
    'no_position_conv': _switch('without CPE', position_conv=False),
    'no_lce': _switch('without LCE', lce='none'),
    'lce_depthwise': _switch('LCE without its 1x1', lce='depthwise'),
    'alibi_absolute': _switch('absolute ALiBi', alibi='absolute'),
    'no_rotary': _switch('without rotation', rotary='none'),
    'decay_fixed': _switch('fixed decay', decay='fixed'),
    'no_decay': _switch('without decay', decay='none'),
    'no_shift': _switch('without shift', shift=False, idle=True),
    'window_7': _switch('windows of 7', window_size=7),
    'window_7_no_shift': _switch(
        'windows of 7, no shift', against='window_7', window_size=7, shift=False
    ),
    'window_4': _switch('windows of 4', window_size=4),
    'window_4_no_shift': _switch(
        'windows of 4, no shift', against='window_4', window_size=4, shift=False
    ),
}
SWITCHES: Mapping[str, Mapping[str, Switch]] = {
    'bare': {
        **_NOTHING,
        'position_conv': _switch('+ CPE', position_conv=True),
        'lce': _switch('+ LCE without its 1x1', lce='depthwise'),
        'lce_pointwise': _switch('+ LCE', lce='pointwise'),
        'rotary': _switch('+ rotation', rotary='interleaved'),
        **_ADDED,
    },
    'rmt': {**_NOTHING, **_ADDED},
    'retention': {
        **_NOTHING,
        'no_gate': _switch('without G1 gate', gate=False),
        'swiglu': _switch('+ SwiGLU on V', swiglu=True),
        'sigmoid': _switch('sigmoid for softmax', score_fn='sigmoid'),
        'alibi_signed': _switch('+ signed ALiBi', alibi='signed'),
        'rotary_split_half': _switch('rotation per axis', rotary='split_half'),
        **_CHANGED,
    },
    'swat': {
        **_NOTHING,
        'no_swiglu': _switch('without SwiGLU on V', swiglu=False),
        'gate': _switch('+ G1 gate', gate=True),
        'softmax': _switch('softmax for sigmoid', score_fn='softmax'),
        'scaled': _switch('scores over √d', scaled=True),
        'no_alibi': _switch('without ALiBi', alibi='none'),
        'rotary_interleaved': _switch(
            'rotation by position', rotary='interleaved'
        ),
        **_CHANGED,
    },
}


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
  """Returns the recipe; `arg` follows the colon."""
  base, _, rest = (arg or '').partition(',')
  switch, _, rest = rest.partition(',')
  fields = changed_fields(base, switch)
  family = BASES[base].family
  if rest.split(',')[0] == 'mini':
    config = recipes.mini_imagenet(f'{family}_large')
    rest = rest.partition(',')[2]
  else:
    config = recipes.cifar10(f'{family}_compact')
  config.model.update(fields)
  return recipes.with_argument(
      config, rest or None, table2=True, words=('mini',)
  )


def changed_fields(base: str, switch: str) -> dict[str, Any]:
  """Returns the fields that a switch changes in its base's named model.

  Raises:
    UserError: If there is no such base or switch; the message lists them.
  """
  if base not in BASES:
    raise UserError(f"no base '{base}'; there are {', '.join(BASES)}")
  if switch not in SWITCHES[base]:
    raise UserError(
        f"{base} has no switch '{switch}'; there are "
        + ', '.join(SWITCHES[base])
    )
  return {**BASES[base].fields, **SWITCHES[base][switch].fields}
