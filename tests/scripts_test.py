"""Tests that each script outside the package tells what it does."""

import ast
import pathlib
import runpy
import sys

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
