"""What devices exchange in a compiled step: sums, and never an image."""

import json

import pytest
import several


def _exchanged(*cases):
  (text,) = several.said(
      several.start('collectives_program.py', *cases, devices=8)
  )
  return json.loads(text.splitlines()[-1])


def _check_sums_only(case):
  assert case['split'] == []
  assert case['exchanged'].keys() == {'all-reduce'}


def test_sums_alone_are_exchanged_and_with_fsdp_parameters_are_gathered():
  """With the whole augmentation: mixing moves no image to another device."""
  found = _exchanged('windows', 'fsdp')
  _check_sums_only(found['windows'])
  fsdp = found['fsdp']
  assert len(fsdp['split']) > 10
  assert fsdp['exchanged'].keys() <= {
      'all-reduce',
      'all-gather',
      'reduce-scatter',
  }
  # Each parameter once, and nothing else: no map, no moment, no gradient.
  assert sorted(fsdp['exchanged']['all-gather']) == sorted(fsdp['split'])


@pytest.mark.slow
@pytest.mark.parametrize('case', ['sigmoid', 'tokens'])
def test_sums_alone_are_exchanged_by_the_other_models(case):
  """Sigmoid attention; attention over all pairs, box mixing of tokens."""
  _check_sums_only(_exchanged(case)[case])
