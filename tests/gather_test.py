"""Runs are found and read, whole, half and damaged."""

import json
import pathlib

import made_up_runs
import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import gather

ROOT = pathlib.Path(__file__).parent.parent
SHORT = ['--config.num_epochs=2']


@pytest.fixture
def folder(tmp_path):
  return made_up_runs.write(
      tmp_path / 'a' / 'rmt_s0',
      'cifar10_rmt',
      [0.25, 0.5],
      test=0.625,
      overrides=SHORT,
  )


def test_reads_a_run_folder(folder, tmp_path):
  (folder / 'latency.json').write_text('{"milliseconds": 1.5}')
  (folder / 'environment.json').write_text('[{"device": "A"}, {"device": "B"}]')
  (run,), problems = gather.gather([tmp_path])
  assert not problems and run.source == folder
  assert run.curve == {1: 0.25, 2: 0.5} and run.epoch == 2 and run.finished
  assert run.tested('accuracy') == 0.625
  assert run.seconds_per_epoch == 20.0
  assert (run.num_classes, run.image_size) == (10, (32, 32))
  assert run.latency == 1.5 and run.device == 'B'
  assert run.config.model.window_size == 0


def test_a_run_that_is_not_finished_was_not_tested(tmp_path):
  """Even if its summary has a test accuracy, as early versions wrote."""
  made_up_runs.write(tmp_path / 'a', 'cifar10_rmt', [0.25], test=0.5)
  (run,), _ = gather.gather([tmp_path])
  assert not run.finished and run.tested('accuracy') is None


def test_a_summary_of_an_earlier_step_is_none(folder):
  with (folder / 'metrics.jsonl').open('a') as file:
    entry = {'kind': 'epoch', 'step': 30, 'epoch': 3, 'val_accuracy': 0.75}
    file.write(json.dumps({**entry, 'seconds': 7.0}) + '\n{"kind": "ep')
  (run,), _ = gather.gather([folder])
  assert run.summary is None and run.epoch == 3
  assert run.seconds_per_epoch == 20.0  # the median of 20, 20, 7


def test_a_summary_without_the_time_of_an_epoch(folder):
  """The log was put away when it was written, and is back."""
  path = folder / 'summary.json'
  summary = json.loads(path.read_text())
  del summary['seconds_per_epoch']
  path.write_text(json.dumps(summary))
  (run,), _ = gather.gather([folder])
  assert run.finished and run.seconds_per_epoch == 20.0


def test_weights_and_other_files_are_no_runs(folder, tmp_path):
  (tmp_path / 'weights').mkdir()
  (tmp_path / 'weights' / 'config.json').write_text('{}')
  (tmp_path / 'other.json').write_text('[1]')
  (folder / 'export').mkdir()
  for name in ('config.json', 'metrics.jsonl'):
    (folder / 'export' / name).write_text('{}')
  runs, problems = gather.gather([tmp_path, folder])  # once, though named twice
  assert len(runs) == 1 and not problems


def test_what_cannot_be_read_is_said(folder, tmp_path):
  other = made_up_runs.write(tmp_path / 'b', 'cifar10_rmt', [0.5])
  (other / 'config.json').write_text('{')
  (tmp_path / 'broken.json').write_text('{"config": {}, "epochs": []}')
  lost = made_up_runs.write(tmp_path / 'c', 'cifar10_rmt', [0.5])
  (lost / 'summary.json').write_text('{"steps": 10, "total_steps": 10}')
  runs, problems = gather.gather([tmp_path])
  assert len(runs) == 1 and len(problems) == 3
  assert f"{lost} is no whole summary: 'last' is not in it" in problems
  assert any(str(other) in problem for problem in problems)
  assert all('\n' not in problem for problem in problems)


def test_a_folder_without_runs_is_told(tmp_path):
  with pytest.raises(UserError, match='there is no run in'):
    gather.gather([tmp_path])
  with pytest.raises(UserError, match='nowhere: no such file or folder'):
    gather.gather([tmp_path / 'nowhere'])


def test_collected_figures_are_those_of_the_run(folder, monkeypatch, tmp_path):
  monkeypatch.syspath_prepend(ROOT / 'results')
  import collect

  start = {
      'command': ['/place/train.py', '--config=x', '--config.data.dir=/place'],
      'device': 'cpu',
  }
  config = {'data': {'dir': '/place', 'name': 'cifar10'}}
  environment = [start, {**start, 'config': config}]
  (folder / 'environment.json').write_text(json.dumps(environment))
  path = tmp_path / 'collected.json'
  path.write_text(json.dumps(collect.collect(folder)))
  assert '/place' not in path.read_text()
  (run,), _ = gather.gather([folder])
  (again,), _ = gather.gather([path])
  assert again.source == path and again.config.model == run.config.model
  for name in ('epochs', 'summary', 'num_classes', 'image_size', 'latency'):
    assert getattr(again, name) == getattr(run, name), name
