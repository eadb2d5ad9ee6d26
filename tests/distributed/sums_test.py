"""Tests that devices exchange only sums of gradients and statistics."""

import json

import several


def test_sums_alone_are_exchanged():
  """With full augmentation: mixing must move no image elsewhere."""
  (text,) = several.said(several.start('collectives_program.py', devices=8))
  assert json.loads(text.splitlines()[-1]).keys() == {'all-reduce'}
