"""Tests that devices exchange only sums of gradients and statistics."""

import json

import pytest
import several


@pytest.mark.parametrize(
    'case',
    [
        'windows',
        pytest.param('sigmoid', marks=pytest.mark.slow),
        pytest.param('tokens', marks=pytest.mark.slow),
    ],
)
def test_sums_alone_are_exchanged(case):
  """Windows with full augmentation: mixing must move no image elsewhere.

  Sigmoid attention; full attention with box mixing of tokens.
  """
  (text,) = several.said(
      several.start('collectives_program.py', case, devices=8)
  )
  assert json.loads(text.splitlines()[-1]).keys() == {'all-reduce'}
