"""Tests that the code of README.md and docs/python.md prints what they say."""

import pathlib
import re

import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.models import factory

_ROOT = pathlib.Path(__file__).parents[1]
_BLOCKS = [
    block
    for page in ('README.md', 'docs/python.md')
    for block in re.findall(
        r'```python\n(.*?)```\n(?:\n```text\n(.*?)```)?',
        (_ROOT / page).read_text(),
        re.DOTALL,
    )
]


def test_the_pages_have_their_examples():
  assert len(_BLOCKS) == 10
  assert sum(bool(output) for _, output in _BLOCKS) == 8


@pytest.mark.parametrize('index', range(len(_BLOCKS)))
def test_a_block_prints_what_the_page_says(index, capsys, monkeypatch):
  """Each block runs on its own; numbers may differ in the last digits."""
  monkeypatch.chdir(_ROOT)
  monkeypatch.setattr(ops, 'FORMS', {**ops.FORMS})  # A block enters its own.
  code, expected = _BLOCKS[index]
  # Parameters that nobody sees: 6 s for the draws of a large model.
  last = code.splitlines()[-1]
  if last.startswith('variables = ') or 'fine_tuning.transfer(' in code:
    monkeypatch.setattr(
        factory,
        'init',
        lambda model, *_: factory.variable_shapes(model),
    )
  exec(compile(code, f'block {index}', 'exec'), {})
  printed = capsys.readouterr().out
  number = re.compile(r'\d+\.\d+')
  assert number.sub('#', printed) == number.sub('#', expected)
  np.testing.assert_allclose(
      [float(value) for value in number.findall(printed)],
      [float(value) for value in number.findall(expected)],
      rtol=5e-3,
  )
