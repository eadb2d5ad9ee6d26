"""Multiply-accumulates, against the figures of the released RMT."""

import pytest

import gswinrmt_jax
from gswinrmt_jax.models import cost

# fvcore's counts of the authors' code at 224 x 224; over 2^30 they are the
# 2.5, 4.5, 9.7 and 18.2 that the paper prints.
_RELEASED = {
    'rmt_t': {
        'convolution': 537_535_488,
        'linear': 1_825_021_952,
        'attention': 274_663_424,
        'layer norm': 10_536_960,
        'batch norm': 2_860_032,
    },
    'rmt_s': {
        'convolution': 604_721_152,
        'linear': 3_931_611_136,
        'attention': 240_242_688,
        'layer norm': 20_070_400,
        'batch norm': 2_860_032,
    },
    'rmt_b': {
        'convolution': 966_402_304,
        'linear': 8_962_056_192,
        'attention': 444_659_712,
        'layer norm': 37_757_440,
        'batch norm': 3_537_408,
    },
    'rmt_l': {
        'convolution': 1_730_457_344,
        'linear': 17_137_934_336,
        'attention': 619_573_248,
        'layer norm': 52_559_360,
        'batch norm': 4_904_704,
    },
}
_PRINTED = {'rmt_t': 2.469, 'rmt_s': 4.470, 'rmt_b': 9.699, 'rmt_l': 18.203}


@pytest.mark.parametrize('name', _RELEASED)
def test_the_released_models_to_the_unit(name):
  model = gswinrmt_jax.create_model(name, num_classes=1000)
  counted = cost.count(model, (224, 224))
  assert counted.operations == _RELEASED[name]
  assert round(counted.macs / 2**30, 3) == _PRINTED[name]


def test_a_dense_head_costs_a_linear_map_of_each_position():
  counts = {}
  for name in ('rmt_s', 'rmt_s_tl'):
    fields = {'depths': (1, 1, 1, 1), 'widths': (16, 16, 16, 24)}
    model = gswinrmt_jax.create_model(
        name, num_classes=10, num_heads=(1, 1, 1, 1), **fields
    )
    counts[name] = cost.count(model, (64, 96)).operations
  dense = 2 * 3 * 24 * 10
  linear = counts['rmt_s']['linear'] + dense
  assert counts['rmt_s_tl'] == counts['rmt_s'] | {'linear': linear}


def test_a_window_costs_what_is_in_it():
  """Stage 1 of 64 x 96 pixels is 16 x 24 tokens: windows of 8, and none."""
  fields = {'depths': (1, 1, 1, 1), 'widths': (16, 16, 16, 16)}
  fields |= {'num_heads': (2, 2, 2, 2), 'shift': False}
  counts = {}
  for window in (8, 0):
    model = gswinrmt_jax.create_model(
        'retention_compact', num_classes=10, window_size=window, **fields
    )
    counts[window] = cost.count(model, (64, 96)).operations
  # Per token, head channel and pass: scores and mixing over one axis.
  maps = [(16, 24), (8, 12), (4, 6), (2, 3)]
  whole = sum(2 * h * w * 16 * (h + w) for h, w in maps)
  # 12 is padded to 16 by windows of 8; the smaller maps are one window.
  windows = 2 * 16 * (16 * 24 * 16 + 8 * 16 * 16)
  windows += sum(2 * h * w * 16 * (h + w) for h, w in maps[2:])
  assert counts[0]['attention'] == whole
  assert counts[8]['attention'] == windows


def test_flops_and_parameters():
  counted = cost.Cost(
      parameters=1,
      operations={'convolution': 10, 'linear': 20, 'layer norm': 5},
  )
  assert counted.macs == 35 and counted.flops == 65
  model = gswinrmt_jax.create_model('rmt_compact', num_classes=10)
  counted = cost.count(model, (32, 32))
  assert counted.parameters == 11_455_018
  # Blocks of 2 h w C (h + w) on maps of 8, 4 and 2; the last map is one token.
  attention = 2 * 2 * 64 * 64 * 16 + 2 * 2 * 16 * 128 * 8 + 6 * 2 * 4 * 256 * 4
  assert counted.operations['attention'] == attention + 2 * 2 * 512
  assert counted.macs == 43_231_744
