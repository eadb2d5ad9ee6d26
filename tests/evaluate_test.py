"""`evaluate`: its arguments; the evaluation itself is tested elsewhere."""

import pathlib

import pytest

from gswinrmt_jax.commands import main
from gswinrmt_jax.evals import evaluate_run


@pytest.fixture
def calls(monkeypatch):
  found = []
  monkeypatch.setattr(
      evaluate_run,
      'evaluate_run',
      lambda folder, **settings: found.append((folder, settings)),
  )
  return found


def test_defaults(calls):
  assert main.main(['evaluate', 'runs/a']) == 0
  assert calls == [
      (
          pathlib.Path('runs/a'),
          {
              'step': 'best',
              'which': None,
              'data': None,
              'split': 'test',
              'image_size': None,
              'batch_size': None,
              'data_dir': None,
          },
      )
  ]


def test_everything_can_be_chosen(calls):
  argv = 'evaluate r --step 351 --split val --image-size 48 --batch-size 7'
  assert (
      main.main([*argv.split(), '--data=a', '--data-dir=d', '--weights=ema'])
      == 0
  )
  assert calls[0][1] == {
      'step': 351,
      'which': 'ema',
      'data': 'a',
      'split': 'val',
      'image_size': 48,
      'batch_size': 7,
      'data_dir': 'd',
  }


@pytest.mark.parametrize(
    ('argument', 'said'),
    [
        ('--step=first', "--step is best, latest or a number, not 'first'"),
        ('--image-size=0', '--image-size must be at least 1'),
        ('--batch-size=-3', '--batch-size must be at least 1'),
        (
            '--weights=mean',
            "argument --weights: invalid choice: 'mean' (choose from 'raw', "
            "'ema') (gswinrmt evaluate --help)",
        ),
    ],
)
def test_mistakes_are_one_line(calls, capsys, argument, said):
  assert main.main(['evaluate', 'r', argument]) == 2
  assert capsys.readouterr().err == f'gswinrmt: {said}\n'
  assert not calls
