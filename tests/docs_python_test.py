"""Tests that each code block of docs/python.md prints what the page says."""

import pathlib
import re

import numpy as np
import pytest

from gswinrmt_jax.models import factory

_ROOT = pathlib.Path(__file__).parents[1]
_PAGE = (_ROOT / 'docs' / 'python.md').read_text()
_BLOCKS = re.findall(
    r'```python\n(.*?)```\n(?:\n```text\n(.*?)```)?', _PAGE, re.DOTALL
)


def test_the_page_has_its_examples():
  assert len(_BLOCKS) == 7
  assert sum(bool(output) for _, output in _BLOCKS) == 6


@pytest.mark.parametrize('index', range(len(_BLOCKS)))
def test_a_block_prints_what_the_page_says(index, capsys, monkeypatch):
  """Each block runs on its own; numbers may differ in the last digits."""
  monkeypatch.chdir(_ROOT)
  code, expected = _BLOCKS[index]
  if not expected:  # Its model is large: 6 s for draws that nobody sees.
    monkeypatch.setattr(
        factory,
        'init',
        lambda model, key, size: factory.variable_shapes(model, (*size, 3)),
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
