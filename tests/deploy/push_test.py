"""Tests uploads by `huggingface_hub` against a fake hub in this process."""

import base64
import dataclasses
import http.server
import json
import pathlib
import threading

from huggingface_hub import constants
import jax
import numpy as np
import pytest
import yaml

from gswinrmt_jax.commands import main
from gswinrmt_jax.deploy import model_card, push
from gswinrmt_jax.weights import load

_RUN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'
_FILES = {'README.md', 'config.json', 'model.safetensors'}
_COMMIT = 'c0ffee' * 6 + 'c0ff'


class _Hub(http.server.BaseHTTPRequestHandler):
  """Answers the few requests that an upload of small files makes."""

  def do_POST(self):
    body = self.rfile.read(int(self.headers['Content-Length']))
    found = self.server.found
    _, _, what = self.path.partition('/api/')
    token = self.headers['Authorization']
    found.requests.append(what)
    if token != 'Bearer hf_secret' or 'nobody' in self.path + body.decode():
      self._answer({'error': 'Invalid username or password.'}, 401)
    elif what == 'repos/create':
      found.created = json.loads(body)
      self._answer({'url': f'{self.server.url}/me/digits'})
    elif what == 'validate-yaml':
      self._answer({'warnings': [], 'errors': []})
    elif what == 'models/me/digits/preupload/main':
      names = [one['path'] for one in json.loads(body)['files']]
      self._answer(
          {
              'files': [
                  {'path': name, 'uploadMode': 'regular', 'shouldIgnore': False}
                  for name in names
              ]
          }
      )
    elif what == 'models/me/digits/commit/main':
      header, *entries = map(json.loads, body.splitlines())
      found.message = header['value']['summary']
      found.files = {
          one['value']['path']: base64.b64decode(one['value']['content'])
          for one in entries
          if one['key'] == 'file'
      }
      url = f'{self.server.url}/me/digits/commit/{_COMMIT}'
      self._answer({'commitUrl': url, 'commitOid': _COMMIT})
    elif 'tag' in what and json.loads(body)['tag'] == 'odd':
      self._answer({'error': 'odd is refused'}, 400)
    elif what == f'models/me/digits/tag/{_COMMIT}':
      found.tag = json.loads(body)['tag']
      self._answer({})
    else:
      self._answer({'error': f'{self.path} is unexpected'}, 404)

  def do_GET(self):
    if self.path.endswith('/api/models/me/digits'):
      self._answer({'id': 'me/digits', **self.server.found.there})
      return
    if not self.path.endswith('/api/models/me/digits/refs'):
      self._answer({'error': 'Invalid username or password.'}, 401)
      return
    kinds = {'branches': 'main', 'tags': 'v0', 'converts': 'x'}
    refs = {
        kind: [{'name': name, 'ref': name, 'targetCommit': _COMMIT}]
        for kind, name in kinds.items()
    }
    self._answer(refs)

  def _answer(self, value, status=200):
    body = json.dumps(value).encode()
    self.send_response(status)
    self.send_header('Content-Type', 'application/json')
    self.send_header('Content-Length', str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def log_message(self, *args):
    """Prints nothing."""


class _Found:
  """What the server was sent."""

  def __init__(self):
    self.requests, self.files = [], {}
    self.created = self.message = self.tag = None
    self.there = {'private': True}  # what is known of the repository


@pytest.fixture(name='found')
def _found(monkeypatch):
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Hub)
  server.url = f'http://127.0.0.1:{server.server_port}'
  server.found = _Found()
  # Polled often, as `shutdown` waits for the next poll.
  threading.Thread(
      target=server.serve_forever, args=(0.02,), daemon=True
  ).start()
  # The library reads HF_ENDPOINT only when it is imported.
  monkeypatch.setattr(constants, 'ENDPOINT', server.url)
  monkeypatch.setenv('HF_TOKEN', 'hf_secret')
  monkeypatch.setenv('NO_PROXY', '127.0.0.1')
  yield server.found
  server.shutdown()
  server.server_close()


def test_a_public_repository_does_not_become_private(found, capsys):
  found.there['private'] = False
  assert main.main(['push', str(_RUN), 'me/digits', '--private']) == 2
  assert 'there already, and public: leave out' in capsys.readouterr().err
  assert not found.files


@pytest.mark.parametrize(
    ('library', 'status'), [('timm', 2), ('gswinrmt_jax', 0)]
)
def test_a_model_of_another_library_is_not_replaced(
    found, capsys, library, status
):
  found.there['library_name'] = library
  assert main.main(['push', str(_RUN), 'me/digits']) == status
  refused = 'me/digits holds a model of timm: choose another'
  assert (refused in capsys.readouterr().err) == bool(status)
  assert bool(found.files) != bool(status)


def test_a_run_is_uploaded_with_its_card(found, tmp_path, capsys):
  arguments = ['push', str(_RUN), 'me/digits', '--license=cc-by-4.0']
  assert main.main([*arguments, '--revision=v1', '--private']) == 0
  said = capsys.readouterr()
  assert "load_model('hf-hub:me/digits@v1')" in said.out
  assert found.created['name'] == 'digits'
  assert found.created['organization'] == 'me'
  assert found.created.get('visibility', 'private') == 'private'
  assert found.tag == 'v1' and 'gswinrmt_jax' in found.message
  assert found.files.keys() == _FILES
  for name, content in found.files.items():
    (tmp_path / name).write_bytes(content)
  here, there = load.load(_RUN), load.load(tmp_path)
  assert json.dumps(there.card.to_dict()) == json.dumps(here.card.to_dict())
  jax.tree.map(np.testing.assert_array_equal, there.variables, here.variables)

  text = found.files['README.md'].decode()
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


def test_the_path_of_class_folders_is_not_uploaded(found, tmp_path):
  weights = load.load(_RUN)
  figures = {**weights.card.figures, 'data': '/home/me/cats'}
  weights.recipe.data.name = figures['data']
  card = dataclasses.replace(weights.card, figures=figures)
  push.push(dataclasses.replace(weights, card=card), 'me/digits')
  assert b'| on cats | |' in found.files['README.md']
  assert not any(b'/home' in content for content in found.files.values())
  for name, content in found.files.items():
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
def test_a_tag_that_cannot_be_set(found, capsys, tag, said, uploaded):
  assert main.main(['push', str(_RUN), 'me/digits', f'--revision={tag}']) == 2
  error = capsys.readouterr().err
  assert said in error and error.count('\n') == 1
  assert bool(found.files) == uploaded and found.tag is None


def test_the_prefix_of_the_hub_is_accepted(found, capsys):
  arguments = ['push', str(_RUN), 'hf-hub:me/digits', '--revision=v1/a-b']
  assert main.main(arguments) == 0
  said = capsys.readouterr().out
  assert "Uploaded: gswinrmt_jax.load_model('hf-hub:me/digits@v1/a-b')" in said
  assert found.created['name'] == 'digits' and found.tag == 'v1/a-b'


@pytest.mark.parametrize(
    ('repository', 'token', 'said'),
    [
        ('me/digits@v1', 'hf_secret', 'name the tag by --revision'),
        ('nobody/x', 'hf_secret', 'nobody/x cannot be uploaded ('),
        ('me/digits', 'wrong', 'me/digits cannot be uploaded ('),
    ],
)
def test_what_fails_is_one_line(
    found, monkeypatch, capsys, repository, token, said
):
  monkeypatch.setenv('HF_TOKEN', token)
  assert main.main(['push', str(_RUN), repository]) == 2
  error = capsys.readouterr().err
  assert error.startswith('gswinrmt: ') and error.count('\n') == 1
  assert said in error and not found.files
  if 'uploaded' in said:
    assert '401' in error and 'hf auth login' in error
