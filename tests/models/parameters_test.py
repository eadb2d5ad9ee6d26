"""Tests parameter counts.

Names of parameters: `golden_test`, `oracle_model_test`, `weights/rmt_test`.
"""

import parameter_counts
from parameter_counts import COUNTS
import pytest

import gswinrmt_jax
from gswinrmt_jax.models import named
from gswinrmt_jax.models.dense.segmenter import create_segmenter


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
        ('rmt_l', 'fpn', 98_153_326),
        ('rmt_l', 'uper', 125_558_276),
    ],
)
def test_parameter_count_of_the_released_segmenters(name, head, count):
  """For the 150 classes of ADE20K; UperNet has its auxiliary head.

  RMT's paper prints 98 million for Semantic FPN, and 125 million for UperNet.
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
