"""Helpers for tests of faults: when a fault happens, and comparison afterwards.

The faults are real: signals, limits, missing files. A few lines that run before
training decide at which step a fault happens.
"""

import json

import tiny_runs

# Epochs end at steps 6, 12, 18, 25; metrics are read there and every 5 steps.
AVERAGED = {'ema_decay': 0.9}

AT_STEP = """
from gswinrmt_jax.runs import metrics_log
steps, add = [], metrics_log.MetricsLog.add
def counted(self, metrics):
  add(self, metrics)
  steps.append(1)
  if len(steps) == {step}:
    happens()
patch.setattr(metrics_log.MetricsLog, 'add', counted)
def happens():
  import os, shutil, time
  while {saved} and not (folder / 'checkpoints' / '{saved}').exists():
    time.sleep(0.01)
  {what}
"""


def at(step, what, *, saved=0):
  """Returns code for a fault during a step, once a checkpoint is complete.

  Args:
    step: The step, counted from the start of the process.
    what: A line of Python that causes the fault.
    saved: The step of the checkpoint to wait for; 0 to wait for none.
  """
  return AT_STEP.format(step=step, what=what, saved=saved)


def steps(folder):
  """Returns the steps of the checkpoints."""
  return sorted(int(path.name) for path in (folder / 'checkpoints').iterdir())


def names(folder):
  """Returns the names of the files in a folder."""
  return sorted(path.name for path in folder.iterdir())


def summary(folder):
  """Returns the summary without times."""
  found = json.loads((folder / 'summary.json').read_text())
  times = *tiny_runs.TIMES, 'seconds_per_epoch'
  return {name: found[name] for name in found if name not in times}


def check_equal(folder, unbroken, *, intervals=True):
  """Checks that all but times equals the unbroken run, with no file left over.

  Args:
    folder: The folder of the run.
    unbroken: The folder of the uninterrupted run.
    intervals: Whether the same intervals must be logged. A run that is stopped
      logs one more.
  """
  last = tiny_runs.checksums(folder, 25)
  assert last == tiny_runs.checksums(unbroken, 25)
  parts = {name.partition('/')[0] for name in last}
  assert parts == {'step', 'params', 'batch_stats', 'opt_state', 'ema'}
  found, expected = (
      [e for e in tiny_runs.figures(f) if intervals or e['kind'] == 'epoch']
      for f in (folder, unbroken)
  )
  assert found == expected
  assert summary(folder) == summary(unbroken)
  assert steps(folder) == steps(unbroken)
  assert names(folder) == names(unbroken)


def resume(launcher, folder, unbroken, *, intervals=True, **changes):
  """Runs to the end, calls `check_equal`, and returns the output."""
  status, said = launcher.run(folder, **AVERAGED, **changes)
  assert status == 0, said
  check_equal(folder, unbroken, intervals=intervals)
  return said


def last_line(said):
  """Returns the last line; checks that it is a message, not a traceback."""
  *_, last = said.splitlines()
  assert last.startswith('gswinrmt: ') and 'Traceback' not in said, said
  return last
