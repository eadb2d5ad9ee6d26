"""Tests parameter counts, and the names that checkpoints rely on."""

from flax import linen as nn
from flax import traverse_util
import parameter_counts
from parameter_counts import COUNTS
import pytest

import gswinrmt_jax
from gswinrmt_jax.models import factory, layers, named
from gswinrmt_jax.models.dense.segmenter import create_segmenter


def _shapes(name, num_classes, **overrides):
  model = gswinrmt_jax.create_model(
      name, num_classes=num_classes, dtype='bfloat16', **overrides
  )
  return factory.variable_shapes(model, (32, 32, 3))


def test_the_table_has_every_model():
  assert COUNTS.keys() == named.MODELS.keys()


@pytest.mark.parametrize('name', COUNTS)
def test_parameter_count(name):
  """`cost_test` counts RMT-T to RMT-L with every block."""
  classes, count = COUNTS[name]
  model = gswinrmt_jax.create_model(name, num_classes=classes)
  assert parameter_counts.count(model) == count


@pytest.mark.parametrize(
    ('name', 'head', 'count'),
    [
        ('rmt_t', 'fpn', 17_034_038),
        ('rmt_s', 'fpn', 29_667_062),
        ('rmt_b', 'fpn', 56_883_614),
        ('rmt_l', 'fpn', 98_153_326),
        ('rmt_s', 'uper', 55_724_428),
        ('rmt_b', 'uper', 83_117_108),
        ('rmt_l', 'uper', 125_558_276),
    ],
)
def test_parameter_count_of_the_released_segmenters(name, head, count):
  """For the 150 classes of ADE20K; UperNet has its auxiliary head.

  RMT's paper prints 17.0, 30, 57 and 98 million for Semantic FPN, and 56, 83
  and 125 million for UperNet.
  """
  model = create_segmenter(name, head=head, num_classes=150)
  assert parameter_counts.count(model) == count


def _plain_block(c):
  """Counts two LNs, four projections, an FFN of width 4 c: 12 c^2 + 13 c."""
  norms, attention = 2 * 2 * c, 4 * (c * c + c)
  return norms + attention + (4 * c * c + 4 * c) + (4 * c * c + c)


def _head(c):
  return 2 * c + 1000 * c + 1000  # LN and Linear


def test_the_count_of_the_deit_skeleton_by_hand():
  """DeiT-S also has a class token and 14 x 14 + 1 position embeddings."""
  embedding = 16 * 16 * 3 * 384 + 384
  count = embedding + 12 * _plain_block(384) + _head(384)
  assert count == COUNTS['rmt_deit_s'][1]
  assert count + 384 + 197 * 384 == 22_050_664  # as published


@pytest.mark.parametrize(
    ('name', 'depths', 'published'),
    [
        ('rmt_swin_t', (2, 2, 6, 2), 28_288_354),
        ('rmt_swin_s', (2, 2, 18, 2), 49_606_258),
    ],
)
def test_the_counts_of_the_swin_skeletons_by_hand(name, depths, published):
  """Swin also has a bias per head and relative position in 7 x 7 windows."""
  widths, heads = (96, 192, 384, 768), (3, 6, 12, 24)
  count = 4 * 4 * 3 * 96 + 96 + 2 * 96  # embedding and its LN
  count += sum(d * _plain_block(c) for d, c in zip(depths, widths, strict=True))
  for c in widths[:3]:  # merging: LN of 4 c, and 4 c to 2 c without bias
    count += 2 * 4 * c + 4 * c * 2 * c
  count += _head(768)
  assert count == COUNTS[name][1]
  tables = sum(
      d * (2 * 7 - 1) ** 2 * n for d, n in zip(depths, heads, strict=True)
  )
  assert count + tables == published


def test_names_of_a_plain_skeleton():
  variables = _shapes('rmt_swin_t', 1000)
  assert variables.keys() == {'params'}  # no BatchNorm
  tree = traverse_util.flatten_dict(variables['params'], sep='/')
  outside = {p: leaf.shape for p, leaf in tree.items() if p[:5] != 'stage'}
  assert outside == {
      'stem/conv/kernel': (4, 4, 3, 96),
      'stem/conv/bias': (96,),
      'stem/norm/scale': (96,),
      'stem/norm/bias': (96,),
      **{
          f'down{i}/{leaf}': shape
          for i, c in ((1, 96), (2, 192), (3, 384))
          for leaf, shape in (
              ('norm/scale', (4 * c,)),
              ('norm/bias', (4 * c,)),
              ('linear/kernel', (4 * c, 2 * c)),
          )
      },
      'norm/scale': (768,),
      'norm/bias': (768,),
      'head/kernel': (768, 1000),
      'head/bias': (1000,),
  }
  prefix = 'stage4/block01/'
  block = {p.removeprefix(prefix) for p in tree if p.startswith(prefix)}
  assert {path.rpartition('/')[0] for path in block} == {
      'attention_norm',
      *(f'attention/{name}' for name in ('query', 'key', 'value', 'out')),
      'ffn_norm',
      'ffn/up',
      'ffn/down',
  }


def test_names_of_a_gated_block():
  """Old checkpoints and the weight-decay mask rely on these names."""
  tree = traverse_util.flatten_dict(
      _shapes('retention_compact', 10)['params'], sep='/'
  )
  prefix = 'stage2/block01/'
  block = {
      path.removeprefix(prefix): leaf.shape
      for path, leaf in tree.items()
      if path.startswith(prefix)
  }
  linear = {
      name: {f'{name}/kernel': (128, 128), f'{name}/bias': (128,)}
      for name in ('query', 'key', 'value', 'gate', 'local_point', 'out')
  }
  expected = {
      'position/kernel': (3, 3, 1, 128),
      'position/bias': (128,),
      'attention_norm/scale': (128,),
      'attention_norm/bias': (128,),
      **{f'attention/{k}': v for n in linear.values() for k, v in n.items()},
      'attention/local/kernel': (5, 5, 1, 128),
      'attention/local/bias': (128,),
      'attention/decay_logit': (2, 4),
      'attention_scale': (128,),
      'ffn_norm/scale': (128,),
      'ffn_norm/bias': (128,),
      'ffn/up/kernel': (128, 512),
      'ffn/up/bias': (512,),
      'ffn/position/kernel': (3, 3, 1, 512),
      'ffn/position/bias': (512,),
      'ffn/norm/scale': (512,),
      'ffn/norm/bias': (512,),
      'ffn/down/kernel': (512, 128),
      'ffn/down/bias': (128,),
      'ffn_scale': (128,),
  }
  assert block == expected


def test_names_outside_of_the_stages():
  variables = _shapes('rmt_t', 1000)
  paths = traverse_util.flatten_dict(variables['params'], sep='/')
  outside = {p.rpartition('/')[0] for p in paths if not p.startswith('stage')}
  assert outside == {
      *(f'stem/conv{i}' for i in range(4)),
      *(f'stem/norm{i}' for i in range(4)),
      *(f'down{i}/{part}' for i in (1, 2, 3) for part in ('conv', 'norm')),
      'proj',
      'proj_norm',
      'head',
  }
  statistics = traverse_util.flatten_dict(variables['batch_stats'], sep='/')
  assert {p.rpartition('/')[0] for p in statistics} == {
      p for p in outside if 'norm' in p
  }


@pytest.mark.parametrize('name', ['rmt_compact', 'retention_compact'])
def test_how_it_is_computed_changes_no_name(name):
  model = gswinrmt_jax.create_model(name, num_classes=10, depths=(2, 1, 1, 1))
  shapes = factory.variable_shapes.__wrapped__  # does not remember
  reference = shapes(model, (32, 32, 3))
  with nn.intercept_methods(layers.plain_convolutions):
    assert shapes(model, (75, 106, 3)) == reference
