"""Tests that devices exchange only sums of gradients and statistics."""

import json

import pytest
import several


def _exchanged(*cases):
  (text,) = several.said(
      several.start('collectives_program.py', *cases, devices=8)
  )
  return json.loads(text.splitlines()[-1])


def _check_sums_only(case):
  assert case.keys() == {'all-reduce'}


def test_sums_alone_are_exchanged():
  """With full augmentation: mixing must move no image to another device."""
  _check_sums_only(_exchanged('windows')['windows'])


@pytest.mark.slow
@pytest.mark.parametrize('case', ['sigmoid', 'tokens'])
def test_sums_alone_are_exchanged_by_the_other_models(case):
  """Sigmoid attention; full attention with box mixing of tokens."""
  _check_sums_only(_exchanged(case)[case])
