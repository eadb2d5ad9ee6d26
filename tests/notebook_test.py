"""Tests that examples/quickstart.ipynb runs, and shows what it says."""

import ast
import importlib
import json
import os
import pathlib
import re
import shutil
import sys

import pytest

import gswinrmt_jax
from gswinrmt_jax import recipes

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
_PATH = _EXAMPLES / 'quickstart.ipynb'


def _printed(notebook):
  """Returns what each code cell printed and returned, as text."""
  found = []
  for cell in notebook['cells']:
    if cell['cell_type'] == 'code':
      texts = [
          output.get('text') or output['data'].get('text/plain', '')
          for output in cell['outputs']
      ]
      found.append(''.join(map(''.join, texts)))
  return found


def _accuracies(printed):
  """Returns the shares that the notebook's own cells print."""
  lines = re.findall(
      r'^(digits_small|fine-tuned|from scratch).*: ([\d.]+)%', printed, re.M
  )
  return {name: float(share) for name, share in lines}


@pytest.fixture(name='saved')
def _saved():
  return json.loads(_PATH.read_text())


def test_the_notebook_is_saved_as_it_ran(saved):
  assert _PATH.stat().st_size < 400_000
  codes = [c for c in saved['cells'] if c['cell_type'] == 'code']
  counts = [cell['execution_count'] for cell in codes]
  assert counts == list(range(1, len(counts) + 1))
  text = '\n'.join(_printed(saved))
  assert not re.search(r'/(root|home|tmp|Users|usr)/', text)
  assert not re.search(r'Traceback|[Ww]arning', text)


def _code(saved):
  """Returns the Python cells as one module, and the shell cells as text."""
  cells = [
      ''.join(c['source']) for c in saved['cells'] if c['cell_type'] == 'code'
  ]
  shell = [cell for cell in cells if cell.startswith('%%bash')]
  python = '\n'.join(cell for cell in cells if cell not in shell)
  return ast.parse(python), '\n'.join(shell)


def test_what_it_uses_exists(saved):
  """Its functions, and the fields of the recipe that it sets."""
  module, shell = _code(saved)
  used = {'gswinrmt_jax': gswinrmt_jax}
  for node in ast.walk(module):
    if isinstance(node, ast.ImportFrom) and node.module.startswith('gswin'):
      for alias in node.names:
        name = f'{node.module}.{alias.name}'
        used[alias.asname or alias.name] = importlib.import_module(name)
  assert len(used) == 6
  called = {
      (node.value.id, node.attr)
      for node in ast.walk(module)
      if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
  }
  called = [(used[name], attr) for name, attr in called if name in used]
  assert len(called) >= 10
  for used_module, attr in called:
    assert hasattr(used_module, attr), (used_module.__name__, attr)
  fields = re.findall(r'--config\.([\w.]+)=', shell)
  assert len(fields) == 8 and recipes.FIELDS.keys() >= {*fields}


@pytest.mark.slow
def test_the_notebook_shows_what_it_says(saved, tmp_path, monkeypatch):
  """No cell fails, and each prints where the saved one does."""
  reason = "needs pip install -e '.[test,notebook]'"
  nbclient = pytest.importorskip('nbclient', reason=reason)
  nbformat = pytest.importorskip('nbformat', reason=reason)
  shutil.copytree(_EXAMPLES / 'images', tmp_path / 'images')
  own = pathlib.Path(sys.executable).parent  # of `gswinrmt`
  monkeypatch.setenv('PATH', f'{own}:{os.environ["PATH"]}')
  ran = nbformat.read(_PATH, as_version=4)
  nbclient.NotebookClient(
      ran,
      timeout=600,
      coalesce_streams=True,
      resources={'metadata': {'path': str(tmp_path)}},
  ).execute()
  before, after = (_printed(each) for each in (saved, ran))
  assert list(map(bool, after)) == list(map(bool, before))
  assert after[-1] == 'True'  # Orbax has the same weights.
  shown, found = (_accuracies('\n'.join(each)) for each in (before, after))
  assert found == pytest.approx(shown, abs=6)  # of 200 images each
  assert found['digits_small'] < 50
  assert min(found['fine-tuned'], found['from scratch']) > 85
