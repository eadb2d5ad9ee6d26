"""Uploading to the hub, with a stub in place of `huggingface_hub.HfApi`."""

import pathlib
import shutil
import sys
import types

import pytest

from gswinrmt_jax.commands import main
from gswinrmt_jax.weights import load, safetensors_file

_RUN = pathlib.Path(__file__).parent / 'data' / 'golden_run'


@pytest.fixture(name='calls')
def _calls(tmp_path, monkeypatch):
  """What the hub was asked to do; uploads are copied to `uploaded`."""
  calls = []

  class Api:

    def __init__(self, library_name):
      assert library_name == 'gswinrmt_jax'

    def create_repo(self, repository, *, private, exist_ok):
      assert exist_ok
      calls.append(('create', repository, private))
      if repository.startswith('nobody/'):
        raise RuntimeError('401: no right to write\nRequest ID: 7')

    def upload_folder(
        self, *, repo_id, folder_path, allow_patterns, commit_message
    ):
      assert commit_message
      calls.append(('upload', repo_id, sorted(allow_patterns)))
      shutil.copytree(folder_path, tmp_path / 'uploaded')
      return types.SimpleNamespace(oid='abc')

    def create_tag(self, repository, *, tag, revision):
      calls.append(('tag', repository, tag, revision))

  module = types.SimpleNamespace(HfApi=Api)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', module)
  return calls


def test_a_run_is_uploaded_with_its_card(calls, tmp_path, capsys):
  arguments = ['push', str(_RUN), 'me/digits', '--license=cc-by-4.0']
  assert main.main([*arguments, '--revision=v1', '--private']) == 0
  files = ['README.md', 'config.json', 'model.safetensors']
  assert calls == [
      ('create', 'me/digits', True),
      ('upload', 'me/digits', files),
      ('tag', 'me/digits', 'v1', 'abc'),
  ]
  folder = tmp_path / 'uploaded'
  assert sorted(path.name for path in folder.iterdir()) == files
  assert load.load(folder).card.class_names == tuple('0123456789')
  head = (folder / 'README.md').read_text().split('---')[1].splitlines()
  assert head[1:6] == [
      'library_name: gswinrmt_jax',
      'pipeline_tag: image-classification',
      'license: cc-by-4.0',
      'tags: [jax, flax, vision-transformer]',
      'datasets: [digits]',
  ]
  assert 'model-index:' in head
  assert '    - {type: accuracy, name: test accuracy, value: 0.9733}' in head
  assert "load_model('hf-hub:me/digits@v1')" in capsys.readouterr().out


def test_weights_of_others_are_not(calls, tmp_path, capsys):
  run = load.load(_RUN)
  safetensors_file.write(tmp_path / 'a.safetensors', run.variables, run.card)
  assert main.main(['push', str(tmp_path / 'a.safetensors'), 'me/rmt']) == 2
  assert 'is not a run: push uploads only' in capsys.readouterr().err
  assert not calls


@pytest.mark.parametrize(
    ('repository', 'said'),
    [
        ('digits', 'should be hf-hub:OWNER/NAME'),
        ('me/digits@v1', 'name the tag by --revision'),
        ('nobody/x', 'nobody/x cannot be uploaded (401: no right to write)'),
    ],
)
def test_what_fails_is_one_line(calls, capsys, repository, said):
  assert main.main(['push', str(_RUN), repository]) == 2
  assert said in capsys.readouterr().err
  assert ('create', repository, False) in calls or not calls
