"""Tests that each component of a model changes it.

A model is traced, initialisation and training at once, and again with another
value of the field. Nothing is compiled.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from gswinrmt_jax.models import factory

_SMALL = {
    'widths': (8, 8),
    'depths': (2, 1),
    'num_heads': (2, 2),
    'mlp_ratios': (1.0, 1.0),
    'layer_scale': (0.1, 0.1),
    'decay_ranges': (4.0, 4.0),
    'drop_path_rate': 0.5,
    'window_size': 4,
}
# Another value of each field, and what else the field needs.
_CHANGES = {
    'widths': ((8, 12), {}),
    'depths': ((2, 2), {}),
    'num_heads': ((2, 4), {}),
    'mlp_ratios': ((1.0, 2.0), {}),
    'stem': ('patch', {}),
    'stem_strides': ((2, 1, 1, 1), {}),
    'patch_size': (2, {'stem': 'patch'}),
    'downsample': ('merge', {}),
    'head': ('proj', {}),
    'projection': (12, {'head': 'proj'}),
    'dense_head': (True, {}),
    'feature_norm': (True, {'num_classes': 0}),
    'drop_path_rate': (0.2, {}),
    'layer_scale': ((0.1, 0.2), {}),
    'position_conv': (False, {}),
    'score_fn': ('sigmoid', {}),
    'scaled': (False, {}),
    'rotary': ('split_half', {}),
    'alibi': ('signed', {}),
    'decay': ('fixed', {}),
    'decay_ranges': ((4.0, 5.0), {}),
    'lce': ('depthwise', {}),
    'head_norm': (True, {}),
    'gate': (False, {}),
    'gate_fn': ('swish', {}),
    'swiglu': (True, {}),
    'window_size': (20, {}),  # above the map: no windows
    'shift': (False, {}),
    'full_stages': ((2,), {}),
    'ffn_conv': (False, {'ffn_norm': False}),
    'ffn_norm': (False, {}),
    'linear_start': ('uniform', {}),
}


@functools.cache
def _program(**fields):
  """Returns the traced initialisation and forward pass, with constants."""
  fields = {'num_classes': 3, **_SMALL, **fields}
  model = factory.create_model('retention_compact', **fields)
  image = jnp.zeros((1, 64, 64, 3))

  def init(key):
    keys = {'params': key, 'dropout': key}
    if fields['num_classes']:
      return model.init(keys, image, train=True)
    return model.init(keys, image, train=True, method=model.features)

  program = jax.make_jaxpr(init)(jax.random.key(0))
  return re.sub(r' at 0x[0-9a-f]+', '', f'{program} {program.consts}')


def test_every_field_is_changed_here():
  assert _CHANGES.keys() == set(factory.FIELDS)


@pytest.mark.parametrize('field', _CHANGES)
def test_another_value_changes_the_model(field):
  value, needs = _CHANGES[field]
  assert _program(**needs, **{field: value}) != _program(**needs)


def test_the_same_model_is_traced_the_same_again():
  first = _program()
  _program.cache_clear()
  assert _program() == first
