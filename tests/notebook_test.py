"""Tests that examples/quickstart.ipynb runs, and shows what it says."""

import os
import pathlib
import re
import shutil
import sys

import nbclient
import nbformat
import pytest

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
_PATH = _EXAMPLES / 'quickstart.ipynb'


def _printed(notebook):
  """Returns what each code cell printed and returned, as text."""
  found = []
  for cell in notebook.cells:
    if cell.cell_type == 'code':
      texts = [
          output.get('text') or output.data.get('text/plain', '')
          for output in cell.outputs
      ]
      found.append(''.join(texts))
  return found


def _accuracies(printed):
  """Returns the shares that the notebook's own cells print."""
  lines = re.findall(
      r'^(digits_small|fine-tuned|from scratch).*: ([\d.]+)%', printed, re.M
  )
  return {name: float(share) for name, share in lines}


@pytest.fixture(name='saved')
def _saved():
  return nbformat.read(_PATH, as_version=4)


def test_the_notebook_is_saved_as_it_ran(saved):
  assert _PATH.stat().st_size < 400_000
  counts = [c.execution_count for c in saved.cells if c.cell_type == 'code']
  assert counts == list(range(1, len(counts) + 1))
  text = '\n'.join(_printed(saved))
  assert not re.search(r'/(root|home|tmp|Users|usr)/', text)
  assert not re.search(r'Traceback|[Ww]arning', text)


@pytest.fixture(name='ran')
def _ran(request, tmp_path, monkeypatch):
  """The notebook as it runs now, with other texts in place of some."""
  shutil.copytree(_EXAMPLES / 'images', tmp_path / 'images')
  own = pathlib.Path(sys.executable).parent  # of `gswinrmt`
  monkeypatch.setenv('PATH', f'{own}:{os.environ["PATH"]}')
  text = _PATH.read_text()
  for old, new in request.param.items():
    assert old in text
    text = text.replace(old, new)
  ran = nbformat.reads(text, as_version=4)
  nbclient.NotebookClient(
      ran,
      timeout=600,
      coalesce_streams=True,
      resources={'metadata': {'path': str(tmp_path)}},
  ).execute()
  return ran


# A few steps of each training.
_SHORT = {
    "'train': 600": "'train': 128",
    'epochs=5': 'epochs=1',
    "'46'": "'8'",
    'step=46': 'step=8',
    'STEPS = 150': 'STEPS = 5',
}


@pytest.mark.parametrize('ran', [_SHORT], indirect=True, ids=['short'])
def test_the_notebook_runs(saved, ran):
  """No cell fails, and each prints where the saved one does."""
  before, after = (_printed(each) for each in (saved, ran))
  assert list(map(bool, after)) == list(map(bool, before))
  assert after[-1] == 'True'  # Orbax has the same weights.


@pytest.mark.slow
@pytest.mark.parametrize('ran', [{}], indirect=True, ids=['whole'])
def test_the_notebook_shows_what_it_says(saved, ran):
  before, after = (_printed(each) for each in (saved, ran))
  shown, found = (_accuracies('\n'.join(each)) for each in (before, after))
  assert found == pytest.approx(shown, abs=6)  # of 200 images each
  assert found['digits_small'] < 50
  assert min(found['fine-tuned'], found['from scratch']) > 85
