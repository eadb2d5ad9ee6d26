"""Tests named models, overrides, and the refusal of impossible models."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import gswinrmt_jax
from gswinrmt_jax.models import architecture, factory, named


def test_override_changes_one_field_only():
  model = gswinrmt_jax.create_model(
      'swat_compact', num_classes=10, window_size=7
  )
  fields = vars(named.MODELS['swat_compact']) | {'window_size': 7}
  assert vars(model.arch) == fields
  assert model.dtype == jnp.float32


def test_none_keeps_the_named_models_value():
  assert factory.resolve('rmt_s', {'depths': None})['depths'] == (3, 4, 18, 4)


def test_lists_and_ints_from_json_become_the_fields_types():
  fields = factory.resolve(
      'rmt_s', {'widths': [8, 16, 24, 32], 'mlp_ratios': [3, 3, 2, 2]}
  )
  assert fields['widths'] == (8, 16, 24, 32)
  assert all(isinstance(ratio, float) for ratio in fields['mlp_ratios'])


def test_dtype_by_name():
  model = gswinrmt_jax.create_model('rmt_t', num_classes=2, dtype='bfloat16')
  assert model.dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ('name', 'options', 'message'),
    [
        ('retention_compat', {}, 'did you mean retention_compact'),
        ('resnet', {}, 'there are retention_compact, '),
        ('rmt_t', {'window': 7}, 'did you mean window_size'),
        ('rmt_t', {'depths': 3}, 'must be a tuple'),
        ('rmt_t', {'depths': (2, 2, 2.5, 2)}, 'depths takes int, not 2.5'),
        ('rmt_t', {'gate': 'yes'}, 'must be a bool'),
        ('rmt_t', {'window_size': True}, 'window_size takes int'),
        ('rmt_t', {'dtype': 'float16'}, 'float16'),
        ('rmt_t', {'dtype': None}, 'dtype=None must be float32'),
        ('rmt_t', {'dtype': jnp.float8_e5m2}, 'dtype=float8_e5m2 must be'),
        ('rmt_t', {'remat': 'all'}, "remat='all' is not one of"),
        ('rmt_t', {'num_classes': 2.5}, 'num_classes=2.5 must be a whole'),
        ('rmt_t', {'feature_norm': True}, 'without a head'),
    ],
)
def test_mistakes_are_named(name, options, message, as_users_run):
  with pytest.raises(ValueError, match=message):
    gswinrmt_jax.create_model(name, **{'num_classes': 10} | options)


def test_a_wrong_number_of_dimensions_is_named(as_users_run):
  model = gswinrmt_jax.create_model('rmt_t', num_classes=2)
  with pytest.raises(ValueError, match=r'width, 3\], not \(1, 32, 3\)'):
    gswinrmt_jax.init(model, jax.random.key(0), (32,))
  with pytest.raises(ValueError, match=r'width, 3\], not \(32, 32, 3\)'):
    model.apply({}, jnp.zeros((32, 32, 3)), train=False)


@pytest.mark.parametrize(
    ('field', 'value', 'message'),
    [
        ('widths', (64, 130, 256, 512), '4 heads do not divide a width of 130'),
        ('widths', (6, 128, 256, 512), 'A head has 3 channels, an odd'),
        ('depths', (2, 0, 6, 2), 'must be positive'),
        ('mlp_ratios', (4.0, 4.0, 4.0), 'needs 4 entries'),
        ('head', 'mlp', "head='mlp' is not one of"),
        ('drop_path_rate', 1.0, r'must be in \[0, 1\)'),
        ('window_size', -1, 'must not be negative'),
        ('full_stages', (0,), 'must be stages from 1 to 4'),
        ('widths', (64, 128), 'depths=.* needs 2 entries, as many as widths'),
        ('decay_ranges', (51.0,) * 4, 'exceeds 50'),
        ('patch_size', 16, "set stem='patch' or 'patch_norm'"),
        ('stem_strides', (2, 2), 'must be four numbers, 1 or 2'),
        ('ffn_conv', False, 'set ffn_norm=False'),
        ('depths', (2, 257, 6, 2), 'depths=.* exceeds 256'),
        ('widths', (64, 2**21, 256, 512), 'widths=.* exceeds 1,048,576'),
        ('mlp_ratios', (4.0, 4.0, 1e308, 4.0), 'mlp_ratios=.* exceeds'),
        ('layer_scale', (float('nan'),) * 4, 'layer_scale=.* exceeds'),
        ('decay_ranges', (float('nan'),) * 4, 'decay_ranges=.* exceeds'),
        ('window_size', 10**30, 'window_size=10+ exceeds'),
        ('score_fn', 'causal', r'set full_stages=\(1, 2, 3, 4\), not \(\)'),
    ],
)
def test_refused_by_name(field, value, message):
  with pytest.raises(ValueError, match=message):
    architecture.Architecture(**{field: value})


@pytest.mark.parametrize(
    'contradiction',
    [{'score_fn': 'sigmoid'}, {'alibi': 'signed'}, {'rotary': 'split_half'}],
)
def test_full_attention_knows_no_axes(contradiction):
  with pytest.raises(ValueError, match=r'set full_stages=\(\)'):
    dataclasses.replace(named.MODELS['rmt_compact'], **contradiction)


def test_a_causal_model_is_full_in_every_stage():
  fields = {'score_fn': 'causal', 'window_size': 0}
  architecture.Architecture(full_stages=(4, 3, 2, 1), **fields)
  with pytest.raises(ValueError, match=r'not \(2, 3, 4\)'):
    architecture.Architecture(full_stages=(2, 3, 4), **fields)


def test_a_stem_of_patches_has_no_strides():
  with pytest.raises(ValueError, match='has no convolutions: set patch_size'):
    dataclasses.replace(named.MODELS['rmt_deit_s'], stem_strides=(2, 1, 1, 1))


def test_an_odd_head_is_fine_without_rotation():
  architecture.Architecture(widths=(6, 128, 256, 512), rotary='none')
