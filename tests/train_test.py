"""`train`: its arguments; the training itself is tested elsewhere."""

import pathlib

import pytest

from gswinrmt_jax.commands import train
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.train import train_loop


@pytest.fixture
def calls(monkeypatch):
  found = []
  monkeypatch.setattr(
      train_loop, 'train', lambda config, folder: found.append((config, folder))
  )
  return found


def test_recipe_and_workdir_reach_the_loop(calls):
  assert train.main(['--config=digits_swat:smoke', '--config.seed=5']) == 0
  assert train.main(['--config', 'digits_swat', '--workdir', 'a/b']) == 0
  (first, folder), (_, other) = calls
  assert first.seed == 5 and first.model.name == 'swat_compact'
  assert folder == pathlib.Path('runs/digits_swat_smoke')
  assert other == pathlib.Path('a/b')


def test_values_may_stand_behind_a_space(calls):
  argv = [
      '--config.seed',
      '5',
      '--config=digits_rmt',
      '--noconfig.augment.flip',
  ]
  assert train.main(argv) == 0
  assert calls[0][0].seed == 5 and not calls[0][0].augment.flip


def test_processes_join_before_anything_is_trained(calls, monkeypatch):
  joined = []
  monkeypatch.setattr(
      processes, 'start', lambda *how: joined.append((how, len(calls)))
  )
  how = ['--coordinator=host:1', '--processes', '2', '--process=1']
  assert train.main(['--config=digits_rmt', *how]) == 0
  assert train.main(['--config=digits_rmt']) == 0
  assert joined == [(('host:1', '2', '1'), 0), (('', '', ''), 1)]
  assert len(calls) == 2


@pytest.mark.parametrize(
    ('argv', 'said'),
    [
        (['--config='], '--config needs a value'),
        (['--workdir=x'], '--config is missing'),
        (['--config=digits_rmt', '--process=1'], '--coordinator and --proce'),
        (['--config=digits_rmt', 'extra'], "unknown argument 'extra'"),
        (['--config=digits_rmt', '--config.sed=1'], 'did you mean seed?'),
        (['--config=nothing'], 'no config file nothing'),
    ],
)
def test_mistakes_are_one_line_and_nothing_starts(calls, capsys, argv, said):
  assert train.main(argv) == 2
  error = capsys.readouterr().err
  assert error.startswith('gswinrmt: ') and error.count('\n') == 1
  assert said in error and not calls


def test_help_with_a_recipe_lists_its_fields(calls, capsys):
  assert train.main(['--config=digits_rmt', '--help']) == 0
  text = capsys.readouterr().out
  assert text.startswith('usage: python train.py --config=')
  assert 'learning_rate: 0.003' in text and not calls
