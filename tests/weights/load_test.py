"""Tests weights from a run, a folder, a file, the hub or the package."""

import dataclasses
import io
import json
import pathlib
import re
import shutil
import sys
import types

import jax
import numpy as np
import pytest
import tiny_parts

import gswinrmt_jax
from gswinrmt_jax import files, recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import data, train_loop
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import hub, load, safetensors_file

_RUN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'


@pytest.fixture(scope='module')
def run():
  return load.load(_RUN)


@pytest.fixture(scope='module')
def folder(run, tmp_path_factory):
  out = tmp_path_factory.mktemp('weights') / 'digits'
  out.mkdir()
  safetensors_file.write(out / 'model.safetensors', run.variables, run.card)
  files.write_json(out / 'config.json', run.card.to_dict())
  return out


def test_a_run_and_its_checkpoints(run):
  assert run.step == 243 and run.epoch == 12
  assert run.card.class_names == tuple('0123456789')
  checkpoint = {'step': 243, 'epoch': 12, 'weights': 'raw'}
  assert run.card.figures['checkpoint'] == checkpoint
  same = load.load(_RUN / 'checkpoints' / '243')
  jax.tree.map(np.testing.assert_array_equal, same.variables, run.variables)
  assert load.load(_RUN / 'checkpoints' / '243', step=243).step == 243
  for step in (7, 'latest'):
    with pytest.raises(UserError, match=f'of step 243: leave out step {step}'):
      load.load(_RUN / 'checkpoints' / '243', step=step)
  with pytest.raises(UserError, match="'foo': must be raw or ema"):
    load.load(_RUN, which='foo')


@pytest.mark.parametrize('which', ['raw', 'ema'])
def test_orbax_alone_restores_what_the_page_says(which, unbroken, monkeypatch):
  """The block of docs/weights.md, on a run with an average."""
  tiny_parts.install(monkeypatch)
  page = pathlib.Path(__file__).parents[2] / 'docs' / 'weights.md'
  (block,) = re.findall(
      r'```python\n(import orbax.*?)```', page.read_text(), re.S
  )
  step = max(int(path.name) for path in (unbroken / 'checkpoints').iterdir())
  names = {}
  exec(
      block.replace('/abs/RUN', str(unbroken)).replace('STEP', str(step)), names
  )
  found = names['average'] if which == 'ema' else names['variables']
  want = load.load(unbroken, step=step, which=which).variables
  assert jax.tree.structure(found) == jax.tree.structure(dict(want))
  jax.tree.map(np.testing.assert_array_equal, found, dict(want))


def test_a_folder_of_weights(run, folder):
  found = load.load(folder)
  assert found.recipe is None and found.step is None
  jax.tree.map(np.testing.assert_array_equal, found.variables, run.variables)
  assert found.card.make_model() == run.card.make_model()
  assert sorted(path.name for path in folder.parent.iterdir()) == ['digits']


def test_weights_are_evaluated_outside_of_their_folder(
    folder, tmp_path, monkeypatch
):
  """On the data of their card; without it, see `evals/evaluate_run_test`."""
  copy = shutil.copytree(folder, tmp_path / 'model' / 'export')
  before = sorted(copy.iterdir())
  monkeypatch.chdir(tmp_path)
  quiet = Terminal(io.StringIO())
  report = evaluate_run.evaluate_run(copy, split='val', terminal=quiet)
  assert report['accuracy'] > 0.9 and report['step'] is None
  path = tmp_path / 'evaluation_model_export_digits_val.json'
  assert json.loads(path.read_text()) == report
  assert sorted(copy.iterdir()) == before


def test_arrays_and_card_that_do_not_belong_together(run, folder, tmp_path):
  fields = {**run.card.fields, 'ffn_norm': not run.card.fields['ffn_norm']}
  card = dataclasses.replace(run.card, fields=fields)
  path = tmp_path / 'model.safetensors'
  safetensors_file.write(path, run.variables, card)
  with pytest.raises(UserError, match='not have the arrays of retention_comp'):
    load.load(path)
  with pytest.raises(UserError, match='is not a run: it has no steps'):
    load.load(folder, step=3)


def test_a_step_is_a_number():
  fixture = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'
  with pytest.raises(
      UserError, match="step is '243': must be 'best', 'latest'"
  ):
    load.load(fixture, step='243')


def test_a_wrong_source_is_refused_before_data_are_read(
    folder, tmp_path, monkeypatch
):
  monkeypatch.setattr(data, 'open_data', lambda *_: pytest.fail('read'))
  config = recipes.digits('swat_compact')
  quiet = Terminal(io.StringIO())
  config.init_from = str(tmp_path / 'typo')
  with pytest.raises(UserError, match='typo does not exist'):
    train_loop.train(config, tmp_path / 'run', quiet)
  config.init_from = str(folder)  # of another model
  with pytest.raises(UserError, match='for another model'):
    train_loop.train(config, tmp_path / 'run', quiet)
  assert not (tmp_path / 'run').exists()


def test_the_home_folder_is_expanded(folder, monkeypatch):
  monkeypatch.setenv('HOME', str(folder.parent))
  assert load.load(f'~/{folder.name}').origin.startswith(str(folder))


def test_values_that_are_not_finite_are_said(run, tmp_path):
  """In one line, which is enough for a thousand of them."""
  params = jax.tree.map(np.array, dict(run.variables['params']))
  params['head']['bias'][3] = np.nan
  params['norm']['scale'][:] = np.inf
  path, said = tmp_path / 'model.safetensors', []
  variables = {**run.variables, 'params': params}
  safetensors_file.write(path, variables, run.card)
  load.load(path, warn=said.append)
  (line,) = said
  arrays = 'params/head/bias, params/norm/scale'
  assert line == f'{path} has values that are not finite, in {arrays}'


@pytest.mark.parametrize(
    ('bounds', 'size', 'said'),
    [
        (None, (32, 32), ''),
        (None, (48, 40), 'for 32 x 32 pixels: at 48 x 40 pixels it may be'),
        ((90, 30), (90, 30), ''),
        ((90, 30), (80, 20), 'for within 90 x 30 pixels: at within 80 x 20'),
        ((), (80, 20), 'for the size that images have: at within 80 x 20'),
    ],
)
def test_another_image_size_is_said(run, bounds, size, said):
  card, lines = run.card, []
  if bounds is not None:
    dense = {'head': 'fpn'}
    card = dataclasses.replace(card, dense=dense, fit_within=bounds or None)
  weights = dataclasses.replace(run, card=card)
  weights.warn_of_size(size, lines.append)
  assert len(lines) == bool(said)
  assert not said or f'{run.origin} was trained {said}' in lines[0]


def test_class_names_cannot_steer_the_terminal(run):
  names = ('\x1b[2J', 'b\n', '\x9bm', '\ud800', 'ü 猫', *'56789')
  card = dataclasses.replace(run.card, class_names=names)
  shown = [card.class_name(label) for label in range(5)]
  assert shown == ['\\x1b[2J', 'b\\n', '\\x9bm', '\\ud800', 'ü 猫']
  info = datasets.info('digits', '')
  with pytest.raises(UserError) as caught:
    dataclasses.replace(run, card=card).check_classes(info)
  assert '\\x1b' in str(caught.value) and str(caught.value).isprintable()


def test_the_images_of_a_run_are_checked(tmp_path):
  copy = shutil.copytree(_RUN, tmp_path / 'run')
  info = dataclasses.asdict(datasets.info('digits', ''))
  fields = {**info, 'std': [0.3, float('nan'), 0.3], 'crop': 1.0}
  (copy / 'data.json').write_text(json.dumps(fields))
  with pytest.raises(UserError, match=r'data\.json cannot be read: .* finite'):
    load.load(copy)


@pytest.fixture(name='asked')
def _asked(tmp_path, monkeypatch):
  """Installs a hub with one repository; returns the list of requests."""
  asked = []

  def snapshot_download(repository, *, revision, allow_patterns):
    asked.append((repository, revision, allow_patterns))
    if repository != 'me/digits':
      raise RuntimeError(f'404: no {repository}\nRequest ID: 7')
    return str(tmp_path / 'snapshot')

  module = types.SimpleNamespace(snapshot_download=snapshot_download)
  monkeypatch.setitem(sys.modules, 'huggingface_hub', module)
  return asked


def test_a_changed_copy_of_the_card_is_said_to_be_unused(folder, tmp_path):
  copied = tmp_path / 'copied'
  shutil.copytree(folder, copied)
  card = json.loads((copied / 'config.json').read_text())
  card['pretrained_cfg']['mean'] = [0.5, 0.5, 0.5]
  (copied / 'config.json').write_text(json.dumps(card))
  said = []
  found = load.load(copied, warn=said.append)
  assert said == [
      f'{copied}/config.json is not used: it differs from the copy inside '
      'model.safetensors'
  ]
  assert (
      load.read_card(copied)
      == found.card
      != card_lib.read(copied / 'config.json')
  )


def test_weights_of_the_hub_are_loaded_by_name(
    asked, run, folder, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  shutil.copytree(folder, tmp_path / 'snapshot')
  loaded = gswinrmt_jax.load_model('hf-hub:me/digits@v1')
  assert asked == [('me/digits', 'v1', ['config.json', 'model.safetensors'])]
  assert loaded.model.arch == run.card.make_model().arch
  jax.tree.map(
      np.testing.assert_array_equal, loaded.variables, dict(run.variables)
  )
  found = load.load(pathlib.Path('hf-hub:me/digits'))
  assert asked[-1][:2] == ('me/digits', None)
  assert found.origin == 'hf-hub:me/digits'
  # Results must not be written into the hub's cache.
  assert found.folder == pathlib.Path()

  (tmp_path / 'snapshot' / 'config.json').write_text('{"architecture": "vit"}')
  with pytest.raises(UserError, match='me/digits is of another library'):
    load.load('hf-hub:me/digits')

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
  with pytest.raises(UserError, match='must be hf-hub:OWNER/NAME'):
    hub.fetch(f'hf-hub:{name}')
  assert not asked


# Weights that ship, and the records of their runs in `results`.
_SHIPPED = {
    'cifar10_small': 'cifar10_small_restart2',
    'digits_small': 'digits_retention',
}


def test_models_are_listed():
  assert load.list_models(pretrained=True) == sorted(_SHIPPED)
  assert load.list_models(['d*', 'digits*'], pretrained=True) == [
      'digits_small'
  ]
  assert load.list_models('rmt_*', pretrained=True) == []
  names = load.list_models(['swat_*', 'rmt_t'])
  assert names == ['rmt_t', 'swat_compact', 'swat_large']


@pytest.mark.parametrize(('name', 'record'), _SHIPPED.items())
def test_weights_that_ship_are_of_a_recorded_run(name, record):
  found = load.load(pathlib.Path(name))
  root = pathlib.Path(__file__).parents[2]
  path = root / 'results' / f'{record}.json'
  summary = json.loads(path.read_text())['summary']
  for which in ('last', 'best'):
    recorded = summary[which]
    scores = {key for key in recorded if key.startswith(('val_', 'test_'))}
    assert len(scores) >= 5
    for score in scores:
      assert found.card.figures[which][score] == recorded[score]
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(found.variables))


def test_umlauts_of_two_characters_are_the_same_class(run):
  names = ('Käfer', 'b', 'c')
  card = dataclasses.replace(run.card, class_names=names, num_classes=3)
  weights = dataclasses.replace(run, card=card)
  info = types.SimpleNamespace(name='x', class_names=('Ka\u0308fer', 'b', 'c'))
  weights.check_classes(info)
  info.class_names = ('Kafer', 'b', 'c')
  with pytest.raises(
      UserError, match=r"class 0 is 'Käfer' in .*, and 'Kafer' in x: "
  ):
    weights.check_classes(info)
  info.class_names = ('b', 'Ka\u0308fer', 'c')
  with pytest.raises(UserError, match=r'the same classes in the same order$'):
    weights.check_classes(info)


def test_a_backbone_has_no_classes(run):
  card = dataclasses.replace(run.card, class_names=(), num_classes=0)
  weights = dataclasses.replace(run, card=card)
  info = types.SimpleNamespace(name='x', class_names=('a', 'b'))
  with pytest.raises(UserError, match=r'is a backbone: it has no classes$'):
    weights.check_classes(info)


def test_weights_that_ship_are_loaded_by_name(tmp_path, monkeypatch, run):
  monkeypatch.chdir(tmp_path)
  found = load.load(pathlib.Path('digits_small'))
  assert found.origin == 'digits_small' and found.folder == pathlib.Path()
  assert load.load('digits_small').card == found.card  # as config.init_from
  with pytest.raises(UserError, match=r'did you mean digits_small'):
    load.load(pathlib.Path('digits_smal'))
  # A folder of that name takes precedence.
  (tmp_path / 'digits_small').mkdir()
  safetensors_file.write(
      tmp_path / 'digits_small' / 'model.safetensors', run.variables, run.card
  )
  (tmp_path / 'digits_small' / 'config.json').write_text(
      json.dumps(run.card.to_dict())
  )
  assert (
      load.load(pathlib.Path('digits_small')).card.fields != found.card.fields
  )
