"""Weights by name, with a hub of our own in place of the real one."""

import pathlib
import shutil
import sys
import types

import jax
import numpy as np
import pytest

import gswinrmt_jax
from gswinrmt_jax.deploy import export
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.weights import hub, load

_RUN = pathlib.Path(__file__).parent / 'data' / 'golden_run'


@pytest.fixture(name='asked')
def _asked(tmp_path, monkeypatch):
  """A hub with one repository; returns what it was asked for."""
  asked = []

  def snapshot_download(repository, *, revision, allow_patterns):
    asked.append((repository, revision, allow_patterns))
    if repository != 'me/digits':
      raise RuntimeError(f'404: no {repository}\nRequest ID: 7')
    return str(tmp_path / 'snapshot')

  module = types.SimpleNamespace(snapshot_download=snapshot_download)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', module)
  return asked


def test_what_is_exported_is_loaded_by_name(asked, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run = load.load(_RUN)
  export.export(
      run, 'safetensors', tmp_path / 'snapshot', metrics_log.Terminal()
  )
  model, variables = gswinrmt_jax.load_model('hf-hub:me/digits@v1')
  assert asked == [('me/digits', 'v1', ['config.json', 'model.safetensors'])]
  assert model.arch == run.make_model().arch
  jax.tree.map(np.testing.assert_array_equal, variables, dict(run.variables))
  found = load.load(pathlib.Path('hf-hub:me/digits'))
  assert asked[-1][:2] == ('me/digits', None)
  assert found.origin == 'hf-hub:me/digits'
  # What is measured does not go into the hub's cache.
  assert found.folder == pathlib.Path()

  shutil.move(tmp_path / 'snapshot' / 'model.safetensors', tmp_path)
  with pytest.raises(UserError, match=r'me/digits has no model\.safetensors$'):
    hub.fetch('hf-hub:me/digits')


def test_a_repository_that_is_not_there_is_one_line(asked):
  with pytest.raises(
      UserError, match=r'nobody/x cannot be fetched \(404.*x\)$'
  ):
    hub.fetch('hf-hub:nobody/x')
  assert asked


@pytest.mark.parametrize('name', ['', 'digits', 'a/b/c', 'a/b@', '../b c'])
def test_what_is_no_name_is_not_asked_for(name, asked):
  with pytest.raises(UserError, match='should be hf-hub:OWNER/NAME'):
    hub.fetch(f'hf-hub:{name}')
  assert not asked


def test_without_the_library(monkeypatch):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  with pytest.raises(UserError, match=r'pip install .gswinrmt_jax\[hub\]'):
    hub.fetch('hf-hub:a/b')
