"""Tests that each script outside the package tells what it does."""

import ast
import pathlib
import runpy
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = [
    path.relative_to(ROOT).as_posix()
    for folder in ('experiments', 'benchmarks', 'examples')
    for path in sorted((ROOT / folder).glob('*.py'))
    if 'ArgumentParser' in path.read_text()
]


@pytest.mark.parametrize('script', SCRIPTS)
def test_help_is_the_docstring(script, monkeypatch, capsys):
  path = ROOT / script
  monkeypatch.chdir(ROOT / 'docs')
  monkeypatch.setattr(sys, 'argv', [str(path), '--help'])
  monkeypatch.setattr(sys, 'path', [str(path.parent), *sys.path])
  with pytest.raises(SystemExit) as ended:
    runpy.run_path(str(path), run_name='__main__')
  assert not ended.value.code
  assert (
      ast.get_docstring(ast.parse(path.read_text())) in capsys.readouterr().out
  )


def test_where_it_looks_scores_a_map_without_evidence_as_a_random_token():
  """The digit's box has the centres of the second row's first two tokens."""
  scores = runpy.run_path(str(ROOT / 'examples/where_it_looks.py'))['_scores']
  box, size, cam = (0, 4, 8, 8), (16, 16), np.zeros((4, 4))
  assert scores(cam, None, size, box) == [1 / 8, 1 / 8, True]
  cam[1, 1] = 2.0
  gate = np.where(np.arange(16).reshape(4, 4) // 4 == 1, 0.5, 0.25)
  outside = (2 * 0.5 + 12 * 0.25) / 14
  assert scores(cam, gate, size, box) == [1, 1 / 8, False, 0.5, outside]
  cam[2, 1] = 3.0
  assert scores(cam, None, size, box) == [0, 1 / 8, False]
