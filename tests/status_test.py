"""How far runs are, from folders that are made up."""

import pathlib

import made_up_runs
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.experiments import sets, status


def _job(folder, *overrides):
  """The run of `cifar10_rmt` in a folder, of three epochs."""
  config = recipe_files.load(
      'cifar10_rmt', ['--config.num_epochs=3', *overrides]
  )
  return sets.Job(folder, (), recipes.resolve(config))


@pytest.fixture
def write(tmp_path):
  def write_one(accuracies, **how):
    folder = tmp_path / f'run{len(list(tmp_path.iterdir()))}'
    return made_up_runs.write(
        folder,
        'cifar10_rmt',
        accuracies,
        overrides=['--config.num_epochs=3'],
        **how,
    )

  return write_one


def test_states(write, tmp_path):
  states = [
      status.read(_job(folder)).state
      for folder in (
          tmp_path / 'nothing',
          write([], summed_up=False),
          write([0.25, 0.5], summed_up=False),
          write([0.25, 0.5]),  # stopped early, summed up there
          write([0.25, 0.5, 0.75], summed_up=False),
          write([0.25, 0.5, 0.75], test=0.625),
      )
  ]
  assert states == [
      'not begun',
      'not begun',
      'epoch 2 of 3',
      'epoch 2 of 3',
      'epoch 3 of 3',  # not tested yet
      'complete',
  ]


def test_a_run_that_is_to_stop_early_is_complete_there(write):
  folder = write([0.25, 0.5])
  early = _job(folder, '--config.stop_after_epochs=2')
  assert status.read(early).complete
  assert not status.read(_job(folder)).complete


def test_a_summary_of_before_the_run_went_on_does_not_count(write):
  """It went on from epoch 2, with `stop_after_epochs` taken away."""
  folder = write([0.25, 0.5], test=0.5)
  with (folder / 'metrics.jsonl').open('a') as file:
    file.write(
        '{"kind": "epoch", "step": 30, "epoch": 3, "val_accuracy": 0.75}\n'
    )
  found = status.read(_job(folder))
  assert not found.complete and found.test_accuracy is None
  assert found.val_accuracy == 0.75


def test_a_folder_of_another_recipe_is_not_complete(write):
  folder = write([0.25, 0.5, 0.75], test=0.625)
  found = status.read(_job(folder, '--config.batch_size=64'))
  assert not found.complete
  assert found.state == (
      'of another config: batch_size is 128 there and 64 here'
  )


def test_table(write):
  table = status.table(
      [
          _job(write([0.25, 0.5, 0.75], test=0.625)),
          _job(write([0.5], summed_up=False)),
          _job(pathlib.Path('/nowhere/run2')),
      ]
  )
  assert table.splitlines()[1:] == [
      'run0      75.00%   62.50%  complete',
      'run1      50.00%        -  epoch 1 of 3',
      'run2           -        -  not begun',
      '1 of 3 runs are complete.',
  ]


def test_a_damaged_run_does_not_hide_the_others(write):
  whole, damaged = (write([0.25, 0.5, 0.75], test=0.625) for _ in range(2))
  (damaged / 'summary.json').write_text('{"steps": 30')
  lines = status.table([_job(damaged), _job(whole)]).splitlines()
  assert f'{damaged / "summary.json"} cannot be read: ' in lines[1]
  assert lines[2].endswith('62.50%  complete')
  assert lines[3] == '1 of 2 runs are complete.'
