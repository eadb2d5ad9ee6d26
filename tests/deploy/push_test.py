"""Tests uploads by a stand-in for the client of `huggingface_hub`."""

import dataclasses
import json
import pathlib
from types import SimpleNamespace
from unittest import mock

import huggingface_hub
import jax
import numpy as np
import pytest
import yaml

from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import model_card, push
from gswinrmt_jax.weights import load

_RUN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'
_FILES = {'README.md', 'config.json', 'model.safetensors'}


@pytest.fixture(name='api')
def _api(monkeypatch):
  """Returns a hub whose calls have the signatures of the library's own."""
  api = mock.create_autospec(huggingface_hub.HfApi, instance=True)
  api.files = {}
  api.model_info.return_value = SimpleNamespace(library_name=None, private=True)
  api.list_repo_refs.return_value = SimpleNamespace(
      tags=[SimpleNamespace(name='v0')], branches=[SimpleNamespace(name='main')]
  )

  def upload_folder(*, folder_path, allow_patterns, **how):
    for path in folder_path.iterdir():
      assert path.name in allow_patterns
      api.files[path.name] = path.read_bytes()
    return SimpleNamespace(oid='c0ffee')

  api.upload_folder.side_effect = upload_folder
  monkeypatch.setattr(huggingface_hub, 'HfApi', lambda library_name: api)
  return api


def test_a_public_repository_does_not_become_private(api, capsys):
  api.model_info.return_value.private = False
  assert main.main(['push', str(_RUN), 'me/digits', '--private']) == 2
  assert 'there already, and public: leave out' in capsys.readouterr().err
  assert not api.files


@pytest.mark.parametrize(
    ('library', 'status'), [('timm', 2), ('gswinrmt_jax', 0)]
)
def test_a_model_of_another_library_is_not_replaced(
    api, capsys, library, status
):
  api.model_info.return_value.library_name = library
  assert main.main(['push', str(_RUN), 'me/digits']) == status
  refused = 'me/digits holds a model of timm: choose another'
  assert (refused in capsys.readouterr().err) == bool(status)
  assert bool(api.files) != bool(status)


def test_a_run_is_uploaded_with_its_card(api, tmp_path, capsys):
  arguments = ['push', str(_RUN), 'me/digits', '--license=cc-by-4.0']
  assert main.main([*arguments, '--revision=v1', '--private']) == 0
  said = capsys.readouterr()
  assert "load_model('hf-hub:me/digits@v1')" in said.out
  api.create_repo.assert_called_once_with(
      'me/digits', private=True, exist_ok=True
  )
  assert 'gswinrmt_jax' in api.upload_folder.call_args.kwargs['commit_message']
  api.create_tag.assert_called_once_with(
      'me/digits', tag='v1', revision='c0ffee'
  )
  assert api.files.keys() == _FILES
  for name, content in api.files.items():
    (tmp_path / name).write_bytes(content)
  here, there = load.load(_RUN), load.load(tmp_path)
  assert json.dumps(there.card.to_dict()) == json.dumps(here.card.to_dict())
  jax.tree.map(np.testing.assert_array_equal, there.variables, here.variables)

  text = api.files['README.md'].decode()
  head = yaml.safe_load(text.split('---')[1])
  assert head['license'] == 'cc-by-4.0'
  *_, result = head['model-index'][0]['results']
  by_name = {one['name']: one for one in result['metrics']}
  assert by_name['test accuracy'] == {
      'type': 'accuracy',
      'name': 'test accuracy',
      'value': 0.9733,
  }
  assert "load_model('hf-hub:me/digits@v1')" in text


def test_the_path_of_class_folders_is_not_uploaded(api, tmp_path):
  weights = load.load(_RUN)
  figures = {**weights.card.figures, 'data': '/home/me/cats'}
  weights.recipe.data.name = figures['data']
  card = dataclasses.replace(weights.card, figures=figures)
  push.push(dataclasses.replace(weights, card=card), 'me/digits')
  assert b'| on cats | |' in api.files['README.md']
  assert not any(b'/home' in content for content in api.files.values())
  for name, content in api.files.items():
    (tmp_path / name).write_bytes(content)
  there = load.load(tmp_path)
  model_card.write(tmp_path, there, 'safetensors', source='here')
  text = (tmp_path / 'README.md').read_text()
  assert '\n|  | |\n' in text and '| test accuracy | ' in text
  assert yaml.safe_load(text.split('---')[1])['model-index'][0]['results'] == []


@pytest.mark.parametrize(
    ('tag', 'said', 'uploaded'),
    [
        ('v 1', "--revision is 'v 1': must be a name such as v1.0", False),
        ('-v1', "--revision is '-v1': must be", False),
        ('v1..2', "--revision is 'v1..2': must be", False),
        ('v1/', "--revision is 'v1/': must be", False),
        ('v0', 'me/digits has v0 already: choose another --revision', False),
        ('main', 'me/digits has main already', False),
        ('odd', 'is uploaded, but cannot be tagged odd (', True),
    ],
)
def test_a_tag_that_cannot_be_set(api, capsys, tag, said, uploaded):
  api.create_tag.side_effect = ValueError(f'{tag} is refused')
  assert main.main(['push', str(_RUN), 'me/digits', f'--revision={tag}']) == 2
  error = capsys.readouterr().err
  assert said in error and error.count('\n') == 1
  assert bool(api.files) == uploaded


def test_the_prefix_of_the_hub_is_accepted(api, capsys):
  arguments = ['push', str(_RUN), 'hf-hub:me/digits', '--revision=v1/a-b']
  assert main.main(arguments) == 0
  said = capsys.readouterr().out
  assert "Uploaded: gswinrmt_jax.load_model('hf-hub:me/digits@v1/a-b')" in said
  assert api.create_repo.call_args.args == ('me/digits',)
  assert api.create_tag.call_args.kwargs['tag'] == 'v1/a-b'


def test_what_fails_is_one_line(api, capsys):
  refused = Exception('401 Unauthorized\n\nInvalid username or password.')
  refused.response = SimpleNamespace(status_code=401)
  api.create_repo.side_effect = refused
  for repository, said in (
      ('me/digits@v1', 'name the tag by --revision'),
      (
          'nobody/x',
          'nobody/x cannot be uploaded (401 Unauthorized Invalid username or '
          'password.): `hf auth login` stores',
      ),
  ):
    assert main.main(['push', str(_RUN), repository]) == 2
    error = capsys.readouterr().err
    assert error.startswith('gswinrmt: ') and error.count('\n') == 1
    assert said in error and not api.files
