"""Runs that something happens to, as processes, and how they go on.

What happens is real: signals, limits, files that are gone. At which step it
happens is decided by a few lines that run before the training.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
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


def _at(step, what, *, saved=0):
  """Code that does something as a step is under way, and a save is over."""
  return AT_STEP.format(step=step, what=what, saved=saved)


@pytest.fixture(scope='module')
def launcher(tmp_path_factory):
  folder = tmp_path_factory.mktemp('launcher')
  with tiny_runs.Launcher(folder) as launcher:
    yield launcher


@pytest.fixture(scope='module')
def unbroken(launcher, tmp_path_factory):
  """The folder of a run that nothing happened to."""
  folder = tmp_path_factory.mktemp('runs') / 'unbroken'
  status, said = launcher.run(folder, **AVERAGED)
  assert status == 0, said
  return folder


def _steps(folder):
  return sorted(int(path.name) for path in (folder / 'checkpoints').iterdir())


def _names(folder):
  return sorted(path.name for path in folder.iterdir())


def _check_equal(folder, unbroken):
  """Everything but times is that of the unbroken run, and nothing is left."""
  last = tiny_runs.checksums(folder, 25)
  assert last == tiny_runs.checksums(unbroken, 25)
  parts = {name.partition('/')[0] for name in last}
  assert parts == {'step', 'params', 'batch_stats', 'opt_state', 'ema'}
  assert tiny_runs.figures(folder) == tiny_runs.figures(unbroken)
  assert _steps(folder) == _steps(unbroken)
  assert _names(folder) == _names(unbroken)


def _go_on(launcher, folder, unbroken, **changes):
  status, said = launcher.run(folder, **AVERAGED, **changes)
  assert status == 0, said
  _check_equal(folder, unbroken)
  return said


@pytest.mark.parametrize(
    ('number', 'status', 'per_dispatch', 'stopped'),
    [
        (signal.SIGTERM, 143, 0, 8),
        (signal.SIGINT, 130, 0, 15),  # where metrics are read as well
        (signal.SIGTERM, 143, 4, 10),  # the dispatch of steps 7 to 10
    ],
)
def test_a_signal_ends_the_run_behind_the_step_with_a_checkpoint(
    launcher, unbroken, tmp_path, number, status, per_dispatch, stopped
):
  how = {**AVERAGED, 'steps_per_dispatch': per_dispatch}
  if per_dispatch:  # a loop on the device: another last bit
    unbroken = tmp_path / 'unbroken'
    assert launcher.run(unbroken, **how)[0] == 0
  folder = tmp_path / 'run'
  what = f'os.kill(os.getpid(), {int(number)})'
  found, said = launcher.run(folder, _at(min(stopped, 15), what), **how)
  assert found == status, said
  *_, last = said.splitlines()
  assert last == (
      f'gswinrmt: stopped by {number.name} after step {stopped}, with a '
      'checkpoint of that step; the same command goes on from there'
  )
  assert _steps(folder)[-1] == stopped
  assert not list(folder.glob('.lock'))
  status, said = launcher.run(folder, **how)
  assert status == 0 and f'the checkpoint of step {stopped}.' in said, said
  _check_equal(folder, unbroken)


def test_a_signal_while_validating_ends_it_behind_the_epoch(
    launcher, unbroken, tmp_path
):
  before = """
import os
from gswinrmt_jax.evals import evaluator as evaluation
each = evaluation.begin
def signalled(*what):
  patch.setattr(evaluation, 'begin', each)
  os.kill(os.getpid(), 15)
  return each(*what)
patch.setattr(evaluation, 'begin', signalled)
"""
  status, said = launcher.run(tmp_path / 'run', before, **AVERAGED)
  assert status == 143 and 'after step 6, with a checkpoint' in said
  assert _steps(tmp_path / 'run') == [6]
  _go_on(launcher, tmp_path / 'run', unbroken)


def test_a_signal_while_the_last_epoch_is_closed_ends_the_run(
    launcher, unbroken, tmp_path
):
  before = """
import os
from gswinrmt_jax.runs import progress
epoch = progress.Progress.epoch
def signalled(self, step, *what):
  epoch(self, step, *what)
  if step == 25:
    os.kill(os.getpid(), 15)
patch.setattr(progress.Progress, 'epoch', signalled)
"""
  status, said = launcher.run(tmp_path / 'run', before, **AVERAGED)
  assert status == 143 and 'after step 25, with a checkpoint' in said, said
  assert not (tmp_path / 'run' / 'summary.json').exists()
  _go_on(launcher, tmp_path / 'run', unbroken)


def test_a_signal_that_ends_the_workers_as_well_costs_no_step(
    launcher, unbroken, tmp_path
):
  """As a scheduler sends it, to all processes of a job."""
  before = """
import os
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import feed
following, calls = feed.Feed.__next__, []
def gone(self):
  calls.append(1)
  if len(calls) == 9:
    os.kill(os.getpid(), 15)
    raise UserError('a worker was killed')
  return following(self)
patch.setattr(feed.Feed, '__next__', gone)
"""
  status, said = launcher.run(tmp_path / 'run', before, **AVERAGED)
  assert status == 143 and 'after step 8, with a checkpoint' in said, said
  _go_on(launcher, tmp_path / 'run', unbroken)


def test_a_second_ctrl_c_ends_it_at_once(launcher, unbroken, tmp_path):
  """Though a checkpoint is being written, which takes a minute here."""
  before = """
from gswinrmt_jax.checkpoints import checkpointer
def slow(*what):
  import time
  time.sleep(60)
patch.setattr(checkpointer, 'write', slow)
"""
  before += _at(8, 'for _ in range(2): os.kill(os.getpid(), 2)')
  begun = time.monotonic()
  status, said = launcher.run(tmp_path / 'run', before, **AVERAGED)
  assert status == 130 and time.monotonic() - begun < 50
  assert said.endswith('\ngswinrmt: interrupted\n') and 'Traceback' not in said
  _go_on(launcher, tmp_path / 'run', unbroken)


def test_a_second_process_refuses_and_a_killed_one_gives_way(
    launcher, unbroken, tmp_path
):
  folder = tmp_path / 'run'
  asleep = "print('asleep', flush=True); time.sleep(600)"
  first = launcher.start(folder, _at(15, asleep, saved=12), **AVERAGED)
  first.wait_for('asleep')
  before = (folder / 'metrics.jsonl').read_bytes()
  status, said = launcher.run(folder, **AVERAGED)  # says elsewhere
  assert status == 2 and said.count('\n') == 1
  assert f'{folder} is being trained by process {first.pid} on ' in said
  assert (folder / 'metrics.jsonl').read_bytes() == before
  # To read is free.
  from gswinrmt_jax.checkpoints import checkpointer

  meta = checkpointer.read_meta(folder / 'checkpoints' / '12')
  assert meta['accuracy'] is not None
  os.kill(first.pid, signal.SIGKILL)
  assert first.wait() == -signal.SIGKILL
  _go_on(launcher, folder, unbroken)


KILLED = """
import os
from gswinrmt_jax import files
from gswinrmt_jax.checkpoints import checkpointer
before, calls = {module}.{name}, []
def killed(*what, **how):
  calls.append(1)
  if {when}:
    os.kill(os.getpid(), 9)
  return before(*what, **how)
patch.setattr({module}, '{name}', killed)
"""
THIRD = 'len(calls) == 3'


@pytest.mark.parametrize(
    ('module', 'name', 'when', 'left'),
    [
        # Before anything of the third is written; while the first of its files
        # is synced; when it is complete, but not renamed.
        ('checkpointer', '_orbax', THIRD, r'6 12 \.18\.\w+\.part'),
        ('files', 'sync', '".18." in str(what)', r'6 12 \.18\.\w+\.part'),
        (
            'files.os',
            'replace',
            '"18" in str(what[1])',
            r'6 12 \.18\.\w+\.part',
        ),
        # When it is complete, but the old one still there; when that has been
        # renamed, but is not removed yet; while it is removed.
        ('checkpointer', 'superseded', THIRD, '6 12 18'),
        ('files', '_remove', 'True', r'\.6\.\w+\.gone 12 18'),
        ('files.os', 'unlink', 'len(calls) == 2', r'\.6\.\w+\.gone 12 18'),
    ],
)
def test_killed_at_each_point_of_a_save(
    launcher, unbroken, tmp_path, module, name, when, left
):
  folder = tmp_path / 'run'
  before = KILLED.format(module=module, name=name, when=when)
  status, said = launcher.run(folder, before, **AVERAGED)
  assert status == -signal.SIGKILL, said
  names = _names(folder / 'checkpoints')
  for pattern in left.split():
    assert any(re.fullmatch(pattern, found) for found in names), names
  assert len(names) == 3
  _go_on(launcher, folder, unbroken)
  assert not (folder / 'damaged_checkpoints').exists()


def test_killed_while_a_file_is_written(launcher, unbroken, tmp_path):
  folder = tmp_path / 'run'
  before = KILLED.format(module='files.os', name='replace', when=THIRD)
  status, said = launcher.run(folder, before, **AVERAGED)
  assert status == -signal.SIGKILL, said
  assert list(folder.glob('.*.part'))
  _go_on(launcher, folder, unbroken)


def test_checkpoints_amid_an_epoch_and_killed_there(
    launcher, unbroken, tmp_path
):
  how = {'checkpoint_every_steps': 4}
  folder = tmp_path / 'run'
  killed = _at(23, 'os.kill(os.getpid(), 9)', saved=20)
  status, said = launcher.run(folder, killed, **AVERAGED, **how)
  assert status == -signal.SIGKILL, said
  assert _steps(folder)[-2:] == [18, 20]
  said = _go_on(launcher, folder, unbroken, **how)
  assert 'from the checkpoint of step 20.' in said


LIMITED = """
from gswinrmt_jax.checkpoints import checkpointer
write, calls = checkpointer.write, []
def limited(*what):
  import resource
  calls.append(1)
  if len(calls) == 2:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, hard))
  return write(*what)
patch.setattr(checkpointer, 'write', limited)
"""


def _ends_in_a_line(said):
  *_, last = said.splitlines()
  assert last.startswith('gswinrmt: ') and 'Traceback' not in said, said
  return last


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    launcher, unbroken, tmp_path
):
  """By a limit on the size of files, as a quota has it."""
  folder = tmp_path / 'run'
  status, said = launcher.run(folder, LIMITED.format(size=6000), **AVERAGED)
  assert status == 1, said
  last = _ends_in_a_line(said)
  reason = f'checkpoint in {folder / "checkpoints"} (File too large); earlier'
  assert f'cannot save a {reason}' in last
  assert 'earlier ones are kept: the last is that of step 6.' in last
  said = _go_on(launcher, folder, unbroken)
  assert 'from the checkpoint of step 6.' in said


@pytest.fixture
def small_disk(tmp_path):
  """A file system of two megabytes."""
  place = tmp_path / 'disk'
  place.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', str(place)]
  if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
    pytest.skip('needs the right to mount a small tmpfs')
  yield place
  subprocess.run(['umount', '-l', str(place)], check=True)


def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(
    launcher, unbroken, small_disk
):
  fill = """
  with open(folder.parent / 'filler', 'wb', buffering=0) as file:
    try:
      while file.write(bytes(4096)): pass
    except OSError: pass
"""
  before = _at(9, fill.strip(), saved=6)
  folder = small_disk / 'run'
  status, said = launcher.run(folder, before, **AVERAGED)
  assert status == 1, said
  assert 'No space left on device' in _ends_in_a_line(said)
  (small_disk / 'filler').unlink()
  said = _go_on(launcher, folder, unbroken)
  assert 'from the checkpoint of step 6.' in said


def test_a_folder_that_is_removed_ends_the_run_and_is_not_made_again(
    launcher, tmp_path
):
  folder = tmp_path / 'run'
  status, said = launcher.run(
      folder, _at(8, 'shutil.rmtree(folder)', saved=6), **AVERAGED
  )
  assert status == 1 and not folder.exists()
  assert 'metrics.jsonl (it was removed)' in _ends_in_a_line(said)


def test_a_folder_that_is_read_only_is_refused(launcher, tmp_path):
  folder = tmp_path / 'place' / 'run'
  folder.parent.mkdir()
  before = 'import os\n'
  if not os.geteuid():
    before += 'os.setuid(65534)\n'  # root may write anywhere
  folder.parent.chmod(0o555)
  for parent in (tmp_path, *tmp_path.parents):
    if parent.name.startswith(('pytest-', 'popen-', tmp_path.name)):
      parent.chmod(0o755)
  status, said = launcher.run(folder, before, **AVERAGED)
  folder.parent.chmod(0o755)
  assert status == 2 and said.count('\n') == 1
  assert f'cannot write to {folder}: Permission denied' in said


NAN_AT = """
import jax, jax.numpy as jnp
from gswinrmt_jax.train import build, train_step as step
make = build.make_augmentation
def broken(config, info):
  augment = make(config, info)
  run = jax.random.fold_in(jax.random.key(config.seed), 1)
  def augmentation(key, batch):
    image, targets = augment(key, batch)
    bad = jax.random.key_data(key) == jax.random.key_data(
        step.augment_key(run, {step} - 1)
    )
    return image + jnp.where(bad.all(), jnp.nan, 0.0), targets
  return augmentation
patch.setattr(build, 'make_augmentation', broken)
"""


@pytest.mark.parametrize(
    ('step', 'seen', 'saved'), [(9, '7 to 10', [6]), (12, '11 to 12', [6])]
)
def test_pixels_that_are_not_finite_end_the_run_before_a_checkpoint(
    launcher, tmp_path, step, seen, saved
):
  """In an interval, and at the last step of an epoch."""
  folder = tmp_path / 'run'
  status, said = launcher.run(folder, NAN_AT.format(step=step), **AVERAGED)
  last = _ends_in_a_line(said)
  assert status == 1 and _steps(folder) == saved
  assert f'not finite at step {step} (seen when reading steps {seen})' in last
  assert 'last good checkpoint: that of step 6, in ' in last
  assert '--config.nan_policy=skip' in last
  assert [e['step'] for e in tiny_runs.figures(folder)][-1] < step


def test_a_step_that_is_not_finite_can_be_skipped(launcher, unbroken, tmp_path):
  """The same command goes on with the policy, and it counts."""
  folder, broken = tmp_path / 'run', NAN_AT.format(step=9)
  assert launcher.run(folder, broken, **AVERAGED)[0] == 1
  skip = {**AVERAGED, 'nan_policy': 'skip'}
  status, said = launcher.run(folder, broken, **skip)
  assert status == 0 and 'from the checkpoint of step 6.' in said, said
  assert 'steps skipped, not finite                  1' in said
  entries = {e['step']: e for e in tiny_runs.figures(folder)}
  assert entries[10]['skipped'] == 1
  assert not any('skipped' in e for s, e in entries.items() if s != 10)
  # The rate is that of an update, and one update less was made.
  others = {e['step']: e for e in tiny_runs.figures(unbroken)}
  for step in (10, 15):
    rate, other = (e[step]['learning_rate'] for e in (entries, others))
    assert rate > other * 1.001  # it falls from step 6 on
  summary = json.loads((folder / 'summary.json').read_text())
  assert summary['skipped_steps'] == 1 and summary['steps'] == 25
  # The optimiser made one update less than there were steps.
  other = tmp_path / 'other'
  assert launcher.run(other, broken, **skip)[0] == 0
  assert tiny_runs.checksums(other, 25) == tiny_runs.checksums(folder, 25)


WATCHED = """
import gc, json, jax, tiny, tiny_parts
# A hundred steps each epoch.
patch.setitem(tiny_parts.SPLITS, 'train', tiny.arrays(0, 400))
gc.freeze()
from gswinrmt_jax.runs import progress
tell = progress.Progress.epoch
def epoch(self, step, *rest):
  tell(self, step, *rest)
  gc.collect()
  pages = int(open('/proc/self/statm').read().split()[1])
  arrays = jax.live_arrays()
  row = [step, pages * 4096, len(arrays), sum(a.nbytes for a in arrays)]
  with open(folder.parent / 'watched', 'a') as file:
    file.write(json.dumps(row) + '\\n')
patch.setattr(progress.Progress, 'epoch', epoch)
"""


@pytest.mark.skipif(
    not pathlib.Path('/proc/self/statm').exists(), reason='needs /proc'
)
def test_memory_is_flat_over_2000_steps_and_20_evaluations(launcher, tmp_path):
  status, said = launcher.run(
      tmp_path / 'run',
      WATCHED,
      num_epochs=20,
      log_every_steps=50,
      steps_per_dispatch=20,
      **AVERAGED,
  )
  assert status == 0, said
  rows = [
      json.loads(line)
      for line in (tmp_path / 'watched').read_text().splitlines()
  ]
  assert len(rows) == 20 and rows[-1][0] == 2000
  # At the end there is no next batch.
  _, _, counts, sizes = zip(*rows[:-1], strict=True)
  assert len(set(counts)) == 1 and len(set(sizes)) == 1
  # Resident, from the fifth evaluation on: what is begun once has been.
  resident = [row[1] / 2**20 for row in rows[4:]]
  assert resident[-1] - resident[0] < 12, resident


def test_an_experiment_that_is_stopped_stops_its_run_with_a_checkpoint(
    tmp_path,
):
  """SIGTERM to the parent of a run that is a real one."""
  script = """
import pathlib, sys
import pytest, tiny_parts
from gswinrmt_jax.commands import guard
from gswinrmt_jax.train import train_loop as loop
from gswinrmt_jax.runs import meter
patch = pytest.MonkeyPatch()
tiny_parts.install(patch)
add = meter.Meter.add
def slow(self, *what):
  import time
  time.sleep(0.2)
  add(self, *what)
patch.setattr(meter.Meter, 'add', slow)
(folder,) = [a.split('=')[1] for a in sys.argv if a.startswith('--workdir')]
recipe, folder = tiny_parts.recipe(), pathlib.Path(folder)
sys.exit(guard.guarded(lambda: loop.train(recipe, folder) and None))
"""
  parent = """
import pathlib, sys
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.experiments import run, sets
jobs = sets.jobs('smoke', pathlib.Path(sys.argv[1]), seeds=1, overrides=[],
                 load=recipe_files.load)
run.run(jobs, [sys.executable, '-c', sys.argv[2]])
"""
  tests = pathlib.Path(__file__).parent
  path = f'{tests.parent}{os.pathsep}{tests}'
  with (tmp_path / 'said').open('w') as said:
    process = subprocess.Popen(
        [sys.executable, '-c', parent, str(tmp_path / 'out'), script],
        env={**os.environ, 'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu'},
        stdout=said,
        stderr=said,
    )
  try:
    deadline = time.monotonic() + 100
    while 'epoch 1/4 done' not in (tmp_path / 'said').read_text():
      assert time.monotonic() < deadline and process.poll() is None
      time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 143
  finally:
    process.kill()
    process.wait()
  said = (tmp_path / 'said').read_text()
  assert 'stopped by SIGTERM after step ' in said
  (folder,) = [p for p in (tmp_path / 'out' / 'smoke').iterdir() if p.is_dir()]
  step = _steps(folder)[-1]
  assert step >= 6 and f'after step {step}, with a checkpoint' in said
