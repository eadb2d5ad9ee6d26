"""The card beside exported weights tells of those weights alone."""

import dataclasses
import pathlib

import pytest

from gswinrmt_jax.deploy import model_card
from gswinrmt_jax.weights import load

_RUN = pathlib.Path(__file__).parent / 'data' / 'golden_run'


@pytest.fixture(scope='module')
def run():
  loaded = load.load(_RUN)
  part = {
      'step': loaded.step,
      'epoch': 12,
      'val_accuracy': 0.25,
      'val_ema_accuracy': 0.5,
      'test_accuracy': 0.375,
      'test_ema_accuracy': 0.625,
  }
  figures = {'last': part, 'best': part, 'seed': 3}
  card = dataclasses.replace(loaded.card, figures=figures)
  return dataclasses.replace(loaded, card=card)


def _text(run, **changes):
  changed = dataclasses.replace(run, **changes)
  return '\n'.join(model_card._lines(changed, 'safetensors'))


def test_the_figures_are_those_of_the_weights_that_were_taken(run):
  raw, ema = _text(run, which='raw'), _text(run, which='ema')
  assert '| validation accuracy | 25.00% |\n| test accuracy | 37.50% |' in raw
  assert '| validation accuracy | 50.00% |\n| test accuracy | 62.50% |' in ema
  assert 'The best checkpoint, epoch 12; seed 3.' in raw
  assert 'epoch 12, moving average of the weights; seed 3.' in ema


def test_another_step_was_not_measured(run):
  assert 'Not measured.' in _text(run, step=7)
