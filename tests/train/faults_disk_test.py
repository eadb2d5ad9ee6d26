"""Tests runs that are killed while writing, full disks and missing folders."""

import os
import re
import signal
import subprocess

import fault_runs
import pytest

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
# The call at which a start of the run is killed, and what files it leaves.
POINTS = (
    # First checkpoint: before anything is written, while its files are synced,
    # when it is complete but not renamed.
    ('checkpointer', '_orbax', 'True', [r'\.6\.\w+\.part']),
    ('files', 'sync', '".6." in str(what)', [r'\.6\.\w+\.part']),
    ('files.os', 'replace', 'what[1].name == "6"', [r'\.6\.\w+\.part']),
    # Third checkpoint: when it is complete but the first is still there; during
    # the removal of the first, which the next start finishes.
    ('files', 'remove', 'True', ['12', '18', '6']),
    ('files.os', 'unlink', 'len(calls) == 2', [r'\.6\.\w+\.gone', '12', '18']),
    # While the start is recorded.
    ('files.os', 'replace', '"environ" in what[1].name', ['12', '18']),
)


def test_killed_at_each_point_of_a_save(launcher, unbroken, tmp_path):
  """One run is killed later each time, and then resumes to its end."""
  folder = tmp_path / 'run'
  for module, name, when, left in POINTS:
    before = KILLED.format(module=module, name=name, when=when)
    status, said = launcher.run(folder, before, **fault_runs.AVERAGED)
    assert status == -signal.SIGKILL, said
    found = fault_runs.names(folder / 'checkpoints')
    assert len(found) == len(left), (name, found)
    for pattern, path in zip(left, found, strict=True):
      assert re.fullmatch(pattern, path), (name, found)
  fault_runs.resume(launcher, folder, unbroken)
  assert not (folder / 'damaged_checkpoints').exists()


def test_killed_after_a_mid_epoch_checkpoint(launcher, unbroken, tmp_path):
  how = {'checkpoint_every_steps': 4}
  folder = tmp_path / 'run'
  killed = fault_runs.at(23, 'os.kill(os.getpid(), 9)', saved=20)
  status, said = launcher.run(folder, killed, **fault_runs.AVERAGED, **how)
  assert status == -signal.SIGKILL, said
  assert fault_runs.steps(folder)[-2:] == [18, 20]
  said = fault_runs.resume(launcher, folder, unbroken, intervals=False, **how)
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


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    launcher, unbroken, tmp_path
):
  """A limit on the size of files acts like a quota."""
  folder = tmp_path / 'run'
  status, said = launcher.run(
      folder, LIMITED.format(size=6000), **fault_runs.AVERAGED
  )
  assert status == 1, said
  last = fault_runs.last_line(said)
  reason = f'checkpoint in {folder / "checkpoints"} (File too large): fix that'
  assert f'cannot save a {reason}' in last
  said = fault_runs.resume(launcher, folder, unbroken)
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
  before = fault_runs.at(9, fill.strip(), saved=6)
  folder = small_disk / 'run'
  status, said = launcher.run(folder, before, **fault_runs.AVERAGED)
  assert status == 1, said
  assert 'No space left on device' in fault_runs.last_line(said)
  (small_disk / 'filler').unlink()
  said = fault_runs.resume(launcher, folder, unbroken)
  assert 'from the checkpoint of step 6.' in said


def test_a_folder_that_is_removed_ends_the_run_and_is_not_made_again(
    launcher, tmp_path
):
  folder = tmp_path / 'run'
  status, said = launcher.run(
      folder,
      fault_runs.at(8, 'shutil.rmtree(folder)', saved=6),
      **fault_runs.AVERAGED,
  )
  assert status == 1 and not folder.exists()
  assert 'metrics.jsonl (it was removed or moved)' in fault_runs.last_line(said)
