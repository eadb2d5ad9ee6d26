"""The ideal traffic, against sums worked by hand."""

import dataclasses

import pytest

from gswinrmt_jax.benchmark import ideal_bytes
from gswinrmt_jax.models import architecture, factory, named


@pytest.mark.parametrize(
    ('name', 'fields', 'passes'),
    [
        # 27 + 7 r forward, 47 + 11 r backward; r = 4.
        ('retention_compact', {}, 74 + 18 * 4),
        ('retention_large', {}, 74 + 18 * 3),
        # A second value instead of the gate: core + 3, local + 2; pointwise - 1
        # and out - 3 without a gate.
        ('swat_compact', {}, 74 + 3 + 2 - 4 + 18 * 4),
        # Three projections (12 - 3), no pointwise (- 8) but the core's output
        # is added in the local convolution (+ 1), whose gradient has no pass
        # between; no gate (- 3).
        ('rmt_compact', {}, 74 - 3 - 8 + 1 - 3 + 18 * 3),
        # Position convolution off: 2 + 3.
        ('retention_compact', {'position_conv': False}, 69 + 72),
        # No local enhancement: local 2 + 3, pointwise 4 + 4, dv in the core 1;
        # the gate is then read by the core: + 1.
        ('retention_compact', {'lce': 'none'}, 74 - 5 - 8 - 1 + 1 + 72),
        # No norm in the FFN: c is added where it is made.
        ('retention_compact', {'ffn_norm': False}, 74 + 11 * 4),
        # No convolution: up 1 + r, down 2 + r; 2 + 2 r twice, GELU r.
        (
            'retention_compact',
            {'ffn_norm': False, 'ffn_conv': False},
            74 + 7 * 4,
        ),
    ],
)
def test_passes_of_a_block(name, fields, passes):
  arch = dataclasses.replace(named.MODELS[name], **fields)
  assert ideal_bytes.block_passes(arch, 0) == passes


def test_a_model_by_hand():
  model = factory.create_model(
      'retention_compact',
      num_classes=3,
      widths=(4, 8),
      depths=(1, 2),
      num_heads=(1, 1),
      mlp_ratios=(4.0, 4.0),
      layer_scale=(1e-2, 1e-2),
      decay_ranges=(4.0, 4.0),
  )
  found = ideal_bytes.ideal(model, batch=5, image_size=32)
  # Maps of 8 x 8 x 4 = 256 and 4 x 4 x 8 = 128 elements.
  assert found.blocks == 2 * 5 * 146 * (256 + 2 * 128)
  # Stem: 16 x 16 x 2 = 512 elements twice, then 8 x 8 x 4 = 256 twice; the
  # image has 3 x 32 x 32 bytes, as much as 1536 elements.
  stem = (2 * 1536 + 4 * 512) + 9 * 512 + (3 * 512 + 6 * 256) + 9 * 256
  down = 3 * 256 + 6 * 128
  assert found.convolutions == 2 * 5 * (stem + down)
  assert found.head == 2 * 5 * 3 * 128
  assert found.parameters % 32 == 0
  assert found.total == (
      found.blocks + found.convolutions + found.head + found.parameters
  )


def test_parameters_and_large_batches():
  model = factory.create_model('retention_compact', num_classes=10)
  one, four = (ideal_bytes.ideal(model, batch, 32) for batch in (1, 4))
  assert one.parameters == four.parameters == 32 * 15_339_106
  assert four.blocks == 4 * one.blocks
  # 8192 + 4096 + 6144 + 1024 elements in the blocks of an image.
  assert one.blocks == 2 * 146 * 19_456


def test_the_projection_head():
  model = factory.create_model('rmt_t', num_classes=10)
  found = ideal_bytes.ideal(model, batch=1, image_size=64)
  # Maps of 2 x 2: 512 and 1024 channels.
  assert found.head == 2 * (3 * 2048 + 5 * 4096)


def test_what_was_not_derived_is_refused():
  for changed in ({'stem': 'patch'}, {'downsample': 'merge'}):
    model = factory.create_model('retention_compact', num_classes=10, **changed)
    with pytest.raises(ValueError, match='convolutional stems'):
      ideal_bytes.ideal(model, 1, 32)
  assert architecture.Architecture().stem == 'conv'
