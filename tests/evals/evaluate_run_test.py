"""Tests on which data weights without a run are evaluated."""

import dataclasses

import pytest

from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.weights import load


def test_weights_are_evaluated_on_the_data_of_their_card(monkeypatch):
  weights = load.load('digits_small')
  named = evaluate_run.data_of(weights, None, 'test', None)
  assert named == ('digits', 'test', '')
  monkeypatch.setattr(datasets, 'own_splits', lambda *_: {'val': 'train[90%:]'})
  named = evaluate_run.data_of(weights, 'digits', 'val', None)
  assert named == ('digits', 'train[90%:]', '')
  card = dataclasses.replace(weights.card, figures={})
  bare = dataclasses.replace(weights, card=card)
  with pytest.raises(UserError, match='name it with --data=digits'):
    evaluate_run.data_of(bare, None, 'test', None)
