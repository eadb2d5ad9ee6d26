"""Tests sets of runs: their jobs, running them in sequence, and progress."""

import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import ablations
import made_up_runs
import processes
import pytest
import run

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files

OUT = pathlib.Path('out')


def _jobs(name, seeds=1, **how):
  return run.jobs(name, OUT, seeds=seeds, **how)


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


def test_smoke_has_what_a_report_needs():
  jobs = _jobs('smoke')
  assert {job.config.data.name for job in jobs} == {'digits'}
  labels = {ablations.label(job.config.model) for job in jobs}
  assert labels == {'rmt', 'retention', 'swat', 'retention,no_gate'}


def test_only_some_of_a_set():
  jobs = _jobs('ablation-cifar10', only='retention_no_*, retention_base')
  names = [job.folder.name for job in jobs]
  assert names[0] == 'retention_base_s0'
  assert 'retention_no_gate_s0' in names and 'swat_no_lce_s0' not in names


def _job(folder, *overrides):
  """Returns a job that trains `cifar10_rmt` in a folder for three epochs."""
  config = recipe_files.load(
      'cifar10_rmt', ['--config.num_epochs=3', *overrides]
  )
  return run.Job(folder, (), recipes.resolve(config))


def _write(folder, accuracies, *overrides, **how):
  """Writes a run folder of such a job."""
  overrides = ['--config.num_epochs=3', *overrides]
  return made_up_runs.write(
      folder, 'cifar10_rmt', accuracies, overrides=overrides, **how
  )


IN_STEPS = ['--config.num_epochs=0', '--config.num_steps=20']
MORE_STEPS = [IN_STEPS[0], '--config.num_steps=2000']


@pytest.mark.parametrize(
    ('accuracies', 'written', 'how', 'changes', 'state'),
    [
        ([], [], {'summed_up': False}, [], 'not begun'),
        ([0.25, 0.5], [], {'summed_up': False}, [], 'epoch 2 of 3'),
        ([0.25, 0.5], [], {}, [], 'epoch 2 of 3'),  # stopped early, summed up
        ([0.25, 0.5, 0.75], [], {'summed_up': False}, [], 'epoch 3 of 3'),
        ([0.25, 0.5, 0.75], [], {'test': 0.5}, [], 'complete'),
        ([0.25, 0.5], [], {}, ['--config.stop_after_epochs=2'], 'complete'),
        ([0.25, 0.5, 0.75], [], {}, [], 'not tested'),
        ([0.25, 0.5], IN_STEPS, {'test': 0.5}, IN_STEPS, 'complete'),
        ([0.25, 0.5], MORE_STEPS, {}, MORE_STEPS, 'step 20 of 2,000'),
        (
            [0.25, 0.5, 0.75],
            [],
            {'test': 0.5},
            ['--config.batch_size=64'],
            'of another config: batch_size is 128 there and 64 here',
        ),
    ],
)
def test_states(accuracies, written, how, changes, state, tmp_path):
  folder = _write(tmp_path / 'a', accuracies, *written, **how)
  assert run.status(_job(folder, *changes)).state == state


def test_a_run_on_class_folders_is_recognised(tmp_path):
  """Its config has the absolute path, and the splits of the folder."""
  job = _job(tmp_path / 'run', '--config.data.name=own')
  fields = 'name=/elsewhere/own', 'train_split=train', 'val_split=val'
  fields = [f'--config.data.{field}' for field in (*fields, 'test_split=')]
  _write(job.folder, [0.25, 0.5, 0.75], *fields)
  assert run.status(job).state == 'complete'
  other = _job(job.folder, '--config.data.name=other')
  assert "data.name is '/elsewhere/own' there" in run.status(other).state


def test_table(tmp_path):
  for name, accuracies in (('run0', [0.25, 0.5, 0.75]), ('run1', [0.5])):
    _write(tmp_path / name, accuracies, test=0.625)
  jobs = [_job(tmp_path / f'run{number}') for number in range(3)]
  assert run.status_table(jobs).splitlines()[1:] == [
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
  assert calls == [' '.join(job.arguments) for job in jobs]
  assert said[0].startswith('[1/3] ') and said[0].endswith('rmt_s0: not begun')
  assert any(line.endswith('failed with status 3') for line in said)


def test_an_out_that_is_a_file(jobs, tmp_path):
  (tmp_path / 'out').write_text('')
  failed, said, calls = _run(jobs, tmp_path)
  assert failed == jobs and not calls
  assert all(' failed: ' in line and 'directory' in line for line in said)


def test_what_is_complete_or_unreadable_or_another_s_is_passed_over(
    jobs, tmp_path
):
  complete, damaged, taken = (job.folder for job in jobs)
  _write(complete, [0.25, 0.5], '--config.num_epochs=2', test=0.5)
  damaged.mkdir(parents=True)
  (damaged / 'config.json').write_text('{')
  with (taken.parent / f'.{taken.name}.lock').open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    failed, said, calls = _run(jobs, tmp_path)
  assert failed == [jobs[1]] and not calls
  assert said[0].endswith('rmt_s0: complete, skipped')
  assert 'config.json cannot be read' in said[1]
  assert 'another process is training it' in said[2]
  # The other runs' own locks are gone.
  assert [path.name for path in taken.parent.glob('.*')] == ['.swat_s0.lock']


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


def test_status_runs_nothing(capsys, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))  # The shell leaves --out=~/x as is.
  argv = ['smoke', '--status', '--seeds=1', '--out=~/runs']
  assert run.main(argv) == 0
  said = capsys.readouterr().out
  assert 'retention_no_gate_s0' in said and f' {tmp_path}/runs/smoke\n' in said
  assert not list(tmp_path.iterdir())


def test_ctrl_c_is_one_line(capsys, tmp_path, monkeypatch):
  def interrupted(jobs, say):
    raise KeyboardInterrupt

  monkeypatch.setattr(run, 'train', interrupted)
  assert run.main(['smoke', f'--out={tmp_path}']) == 130
  said = capsys.readouterr().err
  assert said == 'interrupted: the same command resumes\n'


@pytest.mark.parametrize(
    ('argv', 'said'),
    [
        (['tabel5'], "no experiment 'tabel5' (did you mean table5?)"),
        (['table5', '--config.seed=3'], '--seeds sets the seeds of an exp'),
        (['smoke', '--only=x'], "no run 'x' in the set; there are rmt, "),
        (['table5', '--seeds=0'], '--seeds must be at least 1'),
        (['table5', '--config.sed=3'], 'did you mean --config.seed'),
        (
            ['ablation-cifar10', '--config.model.window_size=4'],
            '--config.model would turn bare into bare,window_4, but the folder',
        ),
    ],
)
def test_mistakes_are_one_line(argv, said, capsys):
  with pytest.raises(SystemExit) as stopped:
    run.main(argv)
  assert stopped.value.code == 2
  assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_set_that_is_stopped_stops_its_run_and_waits_for_it(tmp_path):
  """SIGTERM reaches the run, which has the time to write a checkpoint."""
  program = """
import pathlib, signal, sys, time
def save(*_):
  time.sleep(0.2)
  pathlib.Path('saved').touch()
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path('ready').touch()
time.sleep(60)
"""
  child = subprocess.Popen([sys.executable, '-c', program], cwd=tmp_path)

  def stop():
    processes.until((tmp_path / 'ready').exists)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=stop, daemon=True).start()
  with pytest.raises(SystemExit) as ended:
    run._wait(child)
  assert ended.value.code == child.returncode == 143
  assert (tmp_path / 'saved').exists()
