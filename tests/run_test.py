"""Runs one after another; the training is a script that says what it saw."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import made_up_runs
import pytest

from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.experiments import run, sets

# Writes its arguments to a file, and fails if told to.
SCRIPT = """
import pathlib, sys
folder = [a.partition('=')[2] for a in sys.argv if a.startswith('--workdir')][0]
with open(sys.argv[1], 'a') as file:
  file.write(' '.join(sys.argv[2:]) + '\\n')
sys.exit(3 if 'retention' in folder else 0)
"""


@pytest.fixture
def jobs(tmp_path):
  return sets.jobs(
      'table5',
      tmp_path / 'out',
      seeds=1,
      overrides=['--config.num_epochs=2'],
      load=recipe_files.load,
  )


def _run(jobs, tmp_path):
  said, seen = [], tmp_path / 'seen'
  failed = run.run(jobs, [sys.executable, '-c', SCRIPT, str(seen)], said.append)
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
  assert said[0].endswith('rmt_s0: complete, passed over')


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
  assert len(calls) == 2 and 'another process is at it' in said[0]
  # Their own locks are gone with the runs.
  assert not list(folder.parent.glob('.*_swat_s0.lock'))


def test_what_stops_us_stops_the_run(jobs, tmp_path):
  """SIGTERM: the run ends first, and the next is not begun."""
  seen = tmp_path / 'seen'
  script = (
      'import pathlib, sys, time\n'
      'with open(sys.argv[1], "a") as file: file.write("begun\\n")\n'
      'time.sleep(60)\n'
  )
  timer = subprocess.Popen(
      [
          sys.executable,
          '-c',
          'import os, pathlib, sys, time\n'
          'while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\n'
          f'os.kill({os.getpid()}, {int(signal.SIGTERM)})\n',
          str(seen),
      ]
  )
  start = time.monotonic()
  with pytest.raises(SystemExit) as stopped:
    run.run(jobs, [sys.executable, '-c', script, str(seen)], lambda _: None)
  timer.wait()
  assert stopped.value.code == 143 and time.monotonic() - start < 30
  assert seen.read_text() == 'begun\n'
