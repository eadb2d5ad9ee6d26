"""Tests signals to a run, a second process in its folder, and resuming."""

import os
import random
import signal
import time

import fault_runs
import pytest

VALIDATING = """
import os
from gswinrmt_jax.train import run
validate = run.Run.validate
def signalled(self, state):
  os.kill(os.getpid(), 2)
  return validate(self, state)
patch.setattr(run.Run, 'validate', signalled)
"""
CLOSING = """
import os
from gswinrmt_jax.runs import metrics_log
write_epoch = metrics_log.MetricsLog.write_epoch
def signalled(self, step, figures):
  write_epoch(self, step, figures)
  if step == 25:
    os.kill(os.getpid(), 15)
patch.setattr(metrics_log.MetricsLog, 'write_epoch', signalled)
"""


def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(
    launcher, unbroken, tmp_path
):
  """In a step, at a read of metrics, in validation, after the last epoch."""
  folder = tmp_path / 'run'
  for before, number, stopped in (
      (fault_runs.at(8, 'os.kill(os.getpid(), 15)'), signal.SIGTERM, 8),
      (fault_runs.at(15 - 8, 'os.kill(os.getpid(), 1)'), signal.SIGHUP, 15),
      (VALIDATING, signal.SIGINT, 18),
      (CLOSING, signal.SIGTERM, 25),
  ):
    status, said = launcher.run(folder, before, **fault_runs.AVERAGED)
    assert status == 128 + number, said
    assert fault_runs.last_line(said) == (
        f'gswinrmt: stopped by {number.name} after step {stopped}, with a '
        'checkpoint of that step; the same command resumes from there'
    )
    assert fault_runs.steps(folder)[-1] == stopped
    assert (
        not list(folder.glob('.*')) and not (folder / 'summary.json').exists()
    )
  said = fault_runs.resume(launcher, folder, unbroken, intervals=False)
  assert 'from the checkpoint of step 25.' in said


def test_a_signal_that_ends_the_workers_as_well_costs_no_step(
    launcher, unbroken, tmp_path
):
  """Schedulers send a signal to all processes of a job."""
  before = """
import os
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import data
batches = data.Data.train_batches
def gone(self, start, stop):
  for step, batch in batches(self, start, stop):
    if step == 9:
      os.kill(os.getpid(), 15)
      raise UserError('a worker was killed')
    yield step, batch
patch.setattr(data.Data, 'train_batches', gone)
"""
  folder = tmp_path / 'run'
  status, said = launcher.run(folder, before, **fault_runs.AVERAGED)
  assert status == 143 and 'after step 8, with a checkpoint' in said, said
  fault_runs.resume(launcher, folder, unbroken, intervals=False)


def test_a_second_ctrl_c_ends_it_at_once(launcher, unbroken, tmp_path):
  """Even while a checkpoint is being written, which takes a minute here."""
  before = """
from gswinrmt_jax.checkpoints import checkpointer
def slow(*what):
  import time
  time.sleep(60)
patch.setattr(checkpointer, 'write', slow)
"""
  before += fault_runs.at(8, 'for _ in range(2): os.kill(os.getpid(), 2)')
  begun = time.monotonic()
  status, said = launcher.run(tmp_path / 'run', before, **fault_runs.AVERAGED)
  assert status == 130 and time.monotonic() - begun < 50
  assert said.endswith('\ngswinrmt: interrupted\n') and 'Traceback' not in said
  fault_runs.resume(launcher, tmp_path / 'run', unbroken)


def test_a_second_process_refuses_and_a_killed_one_gives_way(
    launcher, unbroken, tmp_path
):
  folder = tmp_path / 'run'
  asleep = "print('asleep', flush=True); time.sleep(600)"
  first = launcher.start(
      folder, fault_runs.at(15, asleep, saved=12), **fault_runs.AVERAGED
  )
  first.wait_for('asleep')
  before = (folder / 'metrics.jsonl').read_bytes()
  status, said = launcher.run(folder, **fault_runs.AVERAGED)
  assert status == 2 and said.count('\n') == 1
  assert f'{folder} is being trained by process {first.pid} on ' in said
  assert ': wait for it, or choose another --workdir' in said
  assert (folder / 'metrics.jsonl').read_bytes() == before
  # Reading needs no lock.
  from gswinrmt_jax.checkpoints import checkpointer

  meta = checkpointer.read_meta(folder / 'checkpoints' / '12')
  assert meta['accuracy'] is not None
  os.kill(first.pid, signal.SIGKILL)
  assert first.wait() == -signal.SIGKILL
  fault_runs.resume(launcher, folder, unbroken)


@pytest.mark.slow
@pytest.mark.usefixtures('unbroken')  # which has compiled the programs
@pytest.mark.parametrize('name', ['SIGKILL', 'SIGTERM', 'SIGINT'])
def test_killed_at_random_times(name, launcher, tmp_path):
  """Ten runs, each killed at another time; a failure prints the seed."""
  number, seed = signal.Signals[name], random.SystemRandom().randrange(2**32)
  print('seed', seed)
  draw, how = random.Random(seed), {'checkpoint_every_steps': 4}
  whole, begun = tmp_path / 'whole', time.monotonic()
  status, said = launcher.run(whole, **fault_runs.AVERAGED, **how)
  assert status == 0, said
  seconds = time.monotonic() - begun
  for index in range(10):
    folder = tmp_path / f'{index}'
    run = launcher.start(folder, **fault_runs.AVERAGED, **how)
    time.sleep(draw.uniform(0, seconds))
    os.kill(run.pid, number)  # which may have ended
    assert run.wait() in (0, -number, 128 + number), run.said()
    # A run that ends in order logs one interval more.
    intervals = number == signal.SIGKILL
    fault_runs.resume(launcher, folder, whole, intervals=intervals, **how)
