"""Tests that each script of experiments/ and benchmarks/ tells what it does."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = [
    path.relative_to(ROOT).as_posix()
    for folder in ('experiments', 'benchmarks')
    for path in sorted((ROOT / folder).glob('*.py'))
    if 'ArgumentParser' in path.read_text()
]


@pytest.mark.parametrize('script', SCRIPTS)
def test_help_is_the_docstring(script):
  done = subprocess.run(
      [sys.executable, ROOT / script, '--help'],
      cwd=ROOT / 'docs',
      capture_output=True,
      text=True,
  )
  assert done.returncode == 0, done.stderr
  assert (
      ast.get_docstring(ast.parse((ROOT / script).read_text())) in done.stdout
  )
