"""What tests of faults share: when they happen, and what must be equal after.

What happens to a run is real: signals, limits, files that are gone. At which
step it happens is decided by a few lines that run before the training.
"""

import tiny_runs

# Epochs end at steps 6, 12, 18, 25; metrics are read there and each 5 steps.
AVERAGED = {'ema_decay': 0.9}

AT_STEP = """
from gswinrmt_jax.runs import meter
steps, add = [0], meter.Meter.add
def counted(self, metrics, count):
  add(self, metrics, count)
  steps[0] += count
  if steps[0] >= {step} > steps[0] - count:
    happens()
patch.setattr(meter.Meter, 'add', counted)
def happens():
  import os, shutil, time
  while {saved} and not (folder / 'checkpoints' / '{saved}').exists():
    time.sleep(0.01)
  {what}
"""


def at(step, what, *, saved=0):
  """Code that does something as a step is under way, and a save is over."""
  return AT_STEP.format(step=step, what=what, saved=saved)


def steps(folder):
  return sorted(int(path.name) for path in (folder / 'checkpoints').iterdir())


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def check_equal(folder, unbroken):
  """Everything but times is that of the unbroken run, and nothing is left."""
  last = tiny_runs.checksums(folder, 25)
  assert last == tiny_runs.checksums(unbroken, 25)
  parts = {name.partition('/')[0] for name in last}
  assert parts == {'step', 'params', 'batch_stats', 'opt_state', 'ema'}
  assert tiny_runs.figures(folder) == tiny_runs.figures(unbroken)
  assert steps(folder) == steps(unbroken)
  assert names(folder) == names(unbroken)


def resume(launcher, folder, unbroken, **changes):
  status, said = launcher.run(folder, **AVERAGED, **changes)
  assert status == 0, said
  check_equal(folder, unbroken)
  return said


def last_line(said):
  *_, last = said.splitlines()
  assert last.startswith('gswinrmt: ') and 'Traceback' not in said, said
  return last
