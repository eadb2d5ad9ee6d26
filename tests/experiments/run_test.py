"""Tests sets of runs: their jobs, running them in sequence, and progress."""

import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys

import ablations
import made_up_runs
import pytest
import run

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.errors import UserError

OUT = pathlib.Path('out')


def _jobs(name, seeds=1, overrides=()):
  return run.jobs(name, OUT, seeds=seeds, overrides=overrides)


def test_a_round_has_every_variant_before_the_next_seed():
  jobs = _jobs('table5', seeds=2)
  assert [str(job.folder) for job in jobs] == [
      f'out/table5/{name}_s{seed}'
      for seed in (0, 1)
      for name in ('rmt', 'retention', 'swat')
  ]
  assert [job.config.seed for job in jobs] == [0, 0, 0, 1, 1, 1]
  assert jobs[4].config.model.name == 'retention_compact'
  assert jobs[4].config.model.window_size == 14  # fields are resolved
  assert jobs[4].arguments == (
      '--config=cifar10_retention',
      '--workdir=out/table5/retention_s1',
      '--config.seed=1',
  )


def test_ablations_have_every_switch_that_is_felt():
  everything = {
      f'{base}_{switch}'
      for base, table in ablations.SWITCHES.items()
      for switch in table
  }
  idle = {f'{base}_window_14' for base in ('bare', 'rmt')}
  idle |= {f'{base}_no_shift' for base in ('retention', 'swat')}
  for name, expected in (
      ('ablation-mini', everything),
      ('ablation-cifar10', everything - idle),
  ):
    found = [entry.name for entry in run.SETS[name]]
    assert len(found) == len(set(found)) and set(found) == expected
  by_name = {entry.name: entry.spec for entry in run.SETS['ablation-mini']}
  config = recipe_files.load(by_name['swat_window_7'], [])
  assert config.model.name == 'swat_large' and config.model.window_size == 7
  assert config.data.name == 'mini_imagenet'


def test_smoke_has_what_a_report_needs_in_a_minute_a_run():
  jobs = _jobs('smoke')
  assert {job.config.data.name for job in jobs} == {'digits'}
  assert {job.config.num_epochs for job in jobs} == {4}
  labels = {ablations.label(job.config.model) for job in jobs}
  assert labels == {'rmt', 'retention', 'swat', 'retention,no_gate'}


def test_only_some_of_a_set():
  def names(only):
    jobs = run.jobs('ablation-cifar10', OUT, seeds=1, only=only)
    return [job.folder.name for job in jobs]

  assert names('retention_no_*, retention_base')[0] == 'retention_base_s0'
  assert 'retention_no_gate_s0' in names('retention_no_*')
  assert 'swat_no_lce_s0' not in names('retention_no_*')
  with pytest.raises(
      UserError, match=r"no run 'retentoin' in the set; there are bare_"
  ):
    names('swat_*,retentoin')


def _job(folder, *overrides):
  """Returns a job that trains `cifar10_rmt` in a folder for three epochs."""
  config = recipe_files.load(
      'cifar10_rmt', ['--config.num_epochs=3', *overrides]
  )
  return run.Job(folder, (), recipes.resolve(config))


@pytest.fixture
def write(tmp_path):
  def write_one(accuracies, *overrides, **how):
    folder = tmp_path / f'run{len(list(tmp_path.iterdir()))}'
    return made_up_runs.write(
        folder,
        'cifar10_rmt',
        accuracies,
        overrides=['--config.num_epochs=3', *overrides],
        **how,
    )

  return write_one


def test_states(write, tmp_path):
  states = [
      run.status(_job(folder)).state
      for folder in (
          tmp_path / 'nothing',
          write([], summed_up=False),
          write([0.25, 0.5], summed_up=False),
          write([0.25, 0.5]),  # stopped early, with a summary
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
  assert run.status(early).state == 'complete'
  assert run.status(_job(folder)).state == 'epoch 2 of 3'


def test_a_run_counted_in_steps_is_complete_at_its_last(write):
  """Its `num_epochs` is 0."""
  in_steps = ['--config.num_epochs=0', '--config.num_steps=2000']
  stopped = write([0.25, 0.5], *in_steps)
  found = run.status(_job(stopped, *in_steps))
  assert found.state == 'step 20 of 2,000'
  in_steps[1] = '--config.num_steps=20'
  ended = write([0.25, 0.5], *in_steps)
  assert run.status(_job(ended, *in_steps)).state == 'complete'


def test_a_summary_of_before_the_run_went_on_does_not_count(write):
  """It resumed from epoch 2, after `stop_after_epochs` was removed."""
  folder = write([0.25, 0.5], test=0.5)
  with (folder / 'metrics.jsonl').open('a') as file:
    file.write(
        '{"kind": "epoch", "step": 30, "epoch": 3, "val_accuracy": 0.75}\n'
    )
  found = run.status(_job(folder))
  assert found.state != 'complete' and found.test_score is None
  assert found.val_score == 0.75


def test_a_folder_of_another_recipe_is_not_complete(write):
  folder = write([0.25, 0.5, 0.75], test=0.625)
  found = run.status(_job(folder, '--config.batch_size=64'))
  assert found.state == (
      'of another config: batch_size is 128 there and 64 here'
  )


def test_table(write):
  table = run.status_table(
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


# Writes its arguments to a file, and fails for one model.
SCRIPT = """
import sys
folder = [a.partition('=')[2] for a in sys.argv if a.startswith('--workdir')][0]
with open(sys.argv[1], 'a') as file:
  file.write(' '.join(sys.argv[2:]) + '\\n')
sys.exit(3 if 'retention' in folder else 0)
"""


@pytest.fixture
def jobs(tmp_path):
  return run.jobs(
      'table5',
      tmp_path / 'out',
      seeds=1,
      overrides=['--config.num_epochs=2'],
  )


def _run(jobs, tmp_path):
  said, seen = [], tmp_path / 'seen'
  failed = run.train(
      jobs, [sys.executable, '-c', SCRIPT, str(seen)], said.append
  )
  calls = seen.read_text().splitlines() if seen.exists() else []
  return failed, said, calls


def test_a_failing_run_does_not_stop_the_others(jobs, tmp_path):
  failed, said, calls = _run(jobs, tmp_path)
  assert failed == [jobs[1]]
  assert [line.split()[0] for line in calls] == [
      '--config=cifar10_rmt',
      '--config=cifar10_retention',
      '--config=cifar10_swat',
  ]
  assert calls[0] == ' '.join(jobs[0].arguments)
  assert said[0].startswith('[1/3] ') and said[0].endswith('rmt_s0: not begun')
  assert any(line.endswith('failed with status 3') for line in said)


def test_what_is_complete_is_passed_over(jobs, tmp_path):
  made_up_runs.write(
      jobs[0].folder,
      'cifar10_rmt',
      [0.25, 0.5],
      test=0.5,
      overrides=['--config.num_epochs=2'],
  )
  _, said, calls = _run(jobs, tmp_path)
  assert len(calls) == 2 and 'cifar10_rmt' not in calls[0]
  assert said[0].endswith('rmt_s0: complete, skipped')


def test_a_folder_that_cannot_be_read_fails_alone(jobs, tmp_path):
  jobs[0].folder.mkdir(parents=True)
  (jobs[0].folder / 'config.json').write_text('{')
  failed, said, calls = _run(jobs, tmp_path)
  assert failed == jobs[:2] and len(calls) == 2
  assert 'config.json cannot be read' in said[0]


def test_a_run_of_another_process_is_left_alone(jobs, tmp_path):
  folder = jobs[0].folder
  folder.parent.mkdir(parents=True)
  with (folder.parent / f'.{folder.name}.lock').open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    _, said, calls = _run(jobs, tmp_path)
  assert len(calls) == 2 and 'another process is training it' in said[0]
  # The other runs' own locks are gone.
  assert not list(folder.parent.glob('.*_swat_s0.lock'))


def test_what_stops_us_stops_the_run(jobs, tmp_path):
  """On SIGTERM, the current run ends first, and the next does not start."""
  seen = tmp_path / 'seen'
  script = (
      'import sys, time\n'
      'with open(sys.argv[1], "a") as file: file.write("begun\\n")\n'
      'time.sleep(60)\n'
  )
  timer = subprocess.Popen(
      [
          sys.executable,
          '-c',
          'import os, pathlib, sys, time\n'
          'seen = pathlib.Path(sys.argv[1])\n'
          'while not (seen.exists() and seen.read_text()): time.sleep(0.05)\n'
          f'os.kill({os.getpid()}, {int(signal.SIGTERM)})\n',
          str(seen),
      ]
  )
  with pytest.raises(SystemExit) as stopped:
    run.train(jobs, [sys.executable, '-c', script, str(seen)], lambda _: None)
  timer.wait()
  assert stopped.value.code == 143
  assert seen.read_text() == 'begun\n'


def test_help_lists_every_set(capsys):
  with pytest.raises(SystemExit):
    run.main(['--help'])
  text = capsys.readouterr().out
  listed = re.findall(r'^  ([a-z][\w-]+)  ', text, re.MULTILINE)
  assert listed == list(run.SETS)


def test_overrides_and_seeds_reach_the_runs(monkeypatch, capsys, tmp_path):
  calls = []
  monkeypatch.setattr(
      run, 'train', lambda jobs, say: calls.append(jobs) or jobs[:1]
  )
  argv = ['table5', '--seeds=2', '--config.batch_size', '64']
  assert run.main([*argv, f'--out={tmp_path}']) == 1
  (jobs,) = calls
  assert len(jobs) == 6 and {job.config.batch_size for job in jobs} == {64}
  printed = capsys.readouterr()
  assert printed.err == f'failed: {tmp_path}/table5/rmt_s0\n'
  assert '0 of 6 runs are complete.' in printed.out


def test_status_runs_nothing(capsys, tmp_path):
  argv = ['smoke', '--status', '--seeds=1', f'--out={tmp_path}']
  assert run.main(argv) == 0
  assert 'retention_no_gate_s0' in capsys.readouterr().out
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('argv', 'said'),
    [
        (['tabel5'], "no experiment 'tabel5' (did you mean table5?)"),
        (['table5', '--config.seed=3'], '--seeds sets the seeds of an exp'),
        (['smoke', '--only=x'], "no run 'x' in the set; there are rmt, "),
        (['table5', '--seeds=0'], '--seeds must be at least 1'),
        (['table5', '--config.sed=3'], 'did you mean --config.seed'),
    ],
)
def test_mistakes_are_one_line(argv, said, capsys):
  with pytest.raises(SystemExit) as stopped:
    run.main(argv)
  assert stopped.value.code == 2
  assert said in capsys.readouterr().err.splitlines()[-1]
