"""Weights from wherever they are."""

import dataclasses
import io
import pathlib
import shutil

import jax
import numpy as np
import pytest
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import train_loop
from gswinrmt_jax.weights import folder as weights_folder
from gswinrmt_jax.weights import load, safetensors_file

_RUN = pathlib.Path(__file__).parent / 'data' / 'golden_run'


@pytest.fixture(scope='module')
def run():
  return load.load(_RUN)


@pytest.fixture(scope='module')
def folder(run, tmp_path_factory):
  out = tmp_path_factory.mktemp('weights') / 'digits'
  weights_folder.write(out, run.variables, run.card)
  return out


def test_a_run_and_its_checkpoints(run):
  assert run.step == 243 and run.epoch == 12
  assert run.card.class_names == tuple('0123456789')
  same = load.load(_RUN / 'checkpoints' / '243')
  jax.tree.map(np.testing.assert_array_equal, same.variables, run.variables)
  with pytest.raises(UserError, match='no checkpoint 7'):
    load.load(_RUN, step=7)


def test_a_folder_of_weights(run, folder):
  found = load.load(folder)
  assert found.recipe is None and found.step is None
  jax.tree.map(np.testing.assert_array_equal, found.variables, run.variables)
  assert found.make_model() == run.make_model()


def test_evaluation_of_weights_needs_the_data_named(folder, tmp_path):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  quiet = metrics_log.Terminal(io.StringIO())
  with pytest.raises(UserError, match='which data it is for: --data='):
    evaluate_run.evaluate_run(copy, terminal=quiet)
  report = evaluate_run.evaluate_run(
      copy, data='digits', split='val', terminal=quiet
  )
  assert report['accuracy'] > 0.9 and report['step'] is None
  assert (copy / 'evaluation_digits_val.json').exists()


def test_other_classes_are_refused(run, folder, monkeypatch):
  card = dataclasses.replace(run.card, num_classes=7)
  other = dataclasses.replace(run, card=card)
  monkeypatch.setattr(load, 'load', lambda *args, **kwargs: other)
  with pytest.raises(UserError, match='7 classes apart, digits has 10'):
    evaluate_run.evaluate_run(folder, data='digits')


def test_other_names_are_refused(run, folder, monkeypatch):
  card = dataclasses.replace(run.card, class_names=tuple('abcdefghij'))
  other = dataclasses.replace(run, card=card)
  monkeypatch.setattr(load, 'load', lambda *args, **kwargs: other)
  with pytest.raises(UserError, match=r'knows a, b, c \.\.\., digits has 0, 1'):
    evaluate_run.evaluate_run(folder, data='digits')


def test_arrays_and_card_that_do_not_belong_together(run, folder, tmp_path):
  fields = {**run.card.fields, 'ffn_norm': not run.card.fields['ffn_norm']}
  card = dataclasses.replace(run.card, fields=fields)
  path = tmp_path / 'model.safetensors'
  safetensors_file.write(path, run.variables, card)
  with pytest.raises(UserError, match='has not the arrays of the retention_c'):
    load.load(path)
  with pytest.raises(UserError, match='is no run: it has no steps'):
    load.load(folder, step=3)


def test_a_wrong_source_leaves_no_folder(folder, tmp_path, monkeypatch):
  config = recipes.digits('swat_compact')
  config.init_from = str(tmp_path / 'typo')
  with pytest.raises(UserError, match='typo does not exist'):
    train_loop.Run(
        recipes.resolve(config),
        tmp_path / 'run',
        metrics_log.Terminal(io.StringIO()),
    )
  config.init_from = str(folder)  # of another model
  with pytest.raises(UserError, match='for another model'):
    train_loop.Run(
        recipes.resolve(config),
        tmp_path / 'run',
        metrics_log.Terminal(io.StringIO()),
    )
  assert not (tmp_path / 'run').exists()


def test_what_is_not_there(tmp_path):
  with pytest.raises(UserError, match='does not exist; it should be a run'):
    load.load(tmp_path / 'a')
  (tmp_path / 'a.txt').write_text('')
  with pytest.raises(UserError, match=r'a\.txt is not a run'):
    load.load(tmp_path / 'a.txt')
  with pytest.raises(UserError, match='is no run folder'):
    load.load(tmp_path)


def test_a_damaged_folder(folder, tmp_path):
  copy = shutil.copytree(folder, tmp_path / 'copy')
  for path in (copy / 'weights').rglob('*'):
    if path.is_file():
      path.write_bytes(b'')
  with pytest.raises(UserError, match='cannot be read'):
    load.load(copy)


def test_a_run_starts_from_weights(tmp_path, monkeypatch):
  """Another run's: better than an untrained one from the start."""
  tiny_parts.install(monkeypatch)
  quiet = metrics_log.Terminal(io.StringIO())
  first = tmp_path / 'first'
  train_loop.train(tiny_parts.recipe(num_epochs=8), first, quiet)
  learnt = load.load(first).variables
  output = io.StringIO()
  run = train_loop.Run(
      recipes.resolve(tiny_parts.recipe(init_from=str(first))),
      tmp_path / 'second',
      metrics_log.Terminal(output),
  )
  make_state, step = run._restore_or_create()
  state = make_state()
  run.close()
  assert step == 0 and state.step == 0
  jax.tree.map(np.testing.assert_array_equal, state.variables, learnt)
  moments = jax.tree.leaves(state.opt_state)
  assert not any(np.any(moment) for moment in moments)
  assert f'Starting from {first}, step' in output.getvalue()
  assert 'starts anew' not in output.getvalue()
