"""Architectures that cannot be built are refused by the field."""

import dataclasses

import pytest

from gswinrmt_jax.models import architecture


@pytest.mark.parametrize(
    ('field', 'value', 'message'),
    [
        ('widths', (64, 130, 256, 512), '4 heads do not divide a width of 130'),
        ('widths', (6, 128, 256, 512), 'A head of 3 channels is odd'),
        ('depths', (2, 0, 6, 2), 'must be positive'),
        ('mlp_ratios', (4.0, 4.0, 4.0), 'needs 4 entries'),
        ('layer_scale', (0.1,), 'needs 4 entries'),
        ('head', 'mlp', "head='mlp' is not one of"),
        ('rotary', 'spiral', 'rotary='),
        ('drop_path_rate', 1.0, r'must be in \[0, 1\)'),
        ('window_size', -1, 'must not be negative'),
        ('full_stages', (0,), 'not in 1 to 4'),
    ],
)
def test_refused_by_name(field, value, message):
  with pytest.raises(ValueError, match=message):
    architecture.Architecture(**{field: value})


@pytest.mark.parametrize(
    'contradiction',
    [{'score_fn': 'sigmoid'}, {'alibi': 'signed'}, {'rotary': 'split_half'}],
)
def test_full_attention_takes_softmax_without_axes(contradiction):
  with pytest.raises(ValueError, match=r'set full_stages=\(\)'):
    dataclasses.replace(
        architecture.ARCHITECTURES['rmt_compact'], **contradiction
    )


def test_an_odd_head_is_fine_without_rotation():
  architecture.Architecture(widths=(6, 128, 256, 512), rotary='none')


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        (
            'retention_large',
            {'score_fn': 'softmax', 'gate': True, 'swiglu': False},
        ),
        ('swat_large', {'score_fn': 'sigmoid', 'gate': False, 'swiglu': True}),
        ('rmt_large', {'decay': 'fixed', 'window_size': 0, 'gate': False}),
    ],
)
def test_what_tells_the_three_systems_apart(name, expected):
  fields = vars(architecture.ARCHITECTURES[name])
  assert {key: fields[key] for key in expected} == expected
