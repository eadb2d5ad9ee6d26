"""Named models and their overrides."""

import jax.numpy as jnp
import pytest

import gswinrmt_jax
from gswinrmt_jax.models import factory, named


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
        ('retention_compat', {}, "did you mean 'retention_compact'"),
        ('resnet', {}, 'there are retention_compact, '),
        ('rmt_t', {'window': 7}, "did you mean 'window_size'"),
        ('rmt_t', {'depths': (2, 2, 2)}, 'needs 4 entries'),
        ('rmt_t', {'depths': 3}, 'must be a tuple'),
        ('rmt_t', {'depths': (2, 2, 2.5, 2)}, 'depths takes int, not 2.5'),
        ('rmt_t', {'gate': 'yes'}, 'must be a bool'),
        ('rmt_t', {'gate': 1}, 'must be a bool'),
        ('rmt_t', {'window_size': True}, 'window_size takes int'),
        ('rmt_t', {'dtype': 'float16'}, 'float16'),
        ('rmt_t', {'remat': 'all'}, "remat='all' is not one of"),
        ('rmt_t', {'num_classes': -1}, 'negative'),
        ('rmt_t', {'feature_norm': True}, 'without a head'),
    ],
)
def test_mistakes_are_named(name, options, message):
  with pytest.raises(ValueError, match=message):
    gswinrmt_jax.create_model(name, **{'num_classes': 10} | options)
