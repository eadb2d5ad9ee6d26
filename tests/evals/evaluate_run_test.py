"""Tests on which data weights are evaluated."""

import dataclasses
import io

import image_files
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import load


def test_weights_are_evaluated_on_the_data_of_their_card(monkeypatch):
  weights = load.load('digits_small')
  named = evaluate_run.data_of(weights, None, 'test', None)
  assert named == ('digits', 'test', '')
  monkeypatch.setattr(
      datasets, 'own_splits', lambda *_, **how: {'val': 'train[90%:]'}
  )
  named = evaluate_run.data_of(weights, 'digits', 'val', None)
  assert named == ('digits', 'train[90%:]', '')
  # What a run called validation images is none of the data set's own.
  own = {'splits': {'val': 'train[:300]', 'test': ''}}
  figures = {**weights.card.figures, **own}
  card = dataclasses.replace(weights.card, figures=figures)
  run = dataclasses.replace(weights, card=card)
  for data in (None, 'digits'):
    named = evaluate_run.data_of(run, data, 'val', None)
    assert named == ('digits', 'train[:300]', '')
  assert evaluate_run.data_of(run, None, 'test', None)[1] == 'test'
  card = dataclasses.replace(weights.card, figures={})
  bare = dataclasses.replace(weights, card=card)
  with pytest.raises(UserError, match='name it with --data=digits'):
    evaluate_run.data_of(bare, None, 'test', None)


def test_the_folder_of_a_run_may_be_given_as_a_relative_path(
    tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  classes = datasets.info('digits').class_names
  image_files.write(tmp_path / 'own', image_files.names(*classes, count=10))
  recipe = recipes.digits('retention_compact')
  recipe.data.name = str(tmp_path / 'own')
  recipe.data.val_split = 'test[:50%]'
  weights = dataclasses.replace(load.load('digits_small'), recipe=recipe)
  found = evaluate_run.data_of(weights, 'own', 'val', None)
  assert found == (str(tmp_path / 'own'), 'test[:50%]', '')


def test_class_folders_without_splits(tmp_path, monkeypatch):
  """Counts the images; other tests evaluate them."""
  monkeypatch.setattr(
      evaluate_run, '_scores', lambda _, images, *__: {'count': len(images)}
  )
  monkeypatch.setattr(evaluate_run, '_text', lambda *_: '')
  new = tmp_path / 'new'
  classes = datasets.info('digits').class_names
  image_files.write(new, image_files.names(*classes, count=10))

  def evaluate(split):
    said = io.StringIO()
    report = evaluate_run.evaluate_run(
        'digits_small',
        data=str(new),
        split=split,
        out=tmp_path / 'report.json',
        terminal=Terminal(said),
    )
    return report['count'], 'new has no splits: ev' in said.getvalue()

  assert evaluate('all') == (100, False)
  assert evaluate('test') == (10, True)
  (new / 'test').mkdir()
  for name in classes:
    (new / name).rename(new / 'test' / name)
  assert evaluate('test') == (100, False)
