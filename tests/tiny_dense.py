"""What the tests of tiny segmenters and tiny detectors share."""

import signal
import sys

import pytest
import tiny_runs

from gswinrmt_jax.commands import guard
from gswinrmt_jax.commands import main as commands
from gswinrmt_jax.data import datasets, detection, segmentation
from gswinrmt_jax.data.prepare import cifar10

# Fields of their recipes. Of ten training images, epochs end at steps 2, 5, 7.
FIELDS = {
    'dtype': 'float32',
    'compile_effort': 'quick',
    'batch_size': 4,
    'eval_batch_size': 3,
    'num_epochs': 3,
    'log_every_steps': 2,
    'optimizer.warmup_epochs': 0.0,
}
_INSTALL = """
import tiny_parts, {module}
{module}.install(patch)
patch.setattr(tiny_parts, 'recipe', {module}.recipe)
"""
# Kills the run at step 4, mid-epoch.
_KILL = """
import os, signal
from gswinrmt_jax.checkpoints.checkpointer import Checkpointer
from gswinrmt_jax.runs.metrics_log import MetricsLog
save, write = Checkpointer.save, MetricsLog.write_interval
def waits(self, *args, **how):
  save(self, *args, **how)
  self.wait()
def dies(self, step):
  write(self, step)
  if step == 4:
    os.kill(os.getpid(), signal.SIGKILL)
patch.setattr(Checkpointer, 'save', waits)
patch.setattr(MetricsLog, 'write_interval', dies)
"""
_EVERY = {'checkpoint_every_steps': 3}


def install_data(monkeypatch, info, splits):
  """Replaces all data but CIFAR-10's by one set, given its splits' records."""
  records = {
      'segmentation': segmentation.SegmentedImages,
      'detection': detection.AnnotatedImages,
  }

  def load(_, split, *where, image_size, training=None, workers=0, **how):
    del where, how
    return records[info.task](splits[split], image_size, training, workers)

  monkeypatch.setattr(datasets, 'load', load)
  monkeypatch.setattr(datasets, 'info', lambda name, data_dir: info)
  monkeypatch.setattr(cifar10, 'prepare_if_missing', lambda *_: None)
  monkeypatch.setattr(datasets, 'describe', lambda *_: [])
  monkeypatch.setattr(
      datasets, 'open_source', lambda name, split, *_: splits[split]
  )
  own, own_splits = {split: split for split in splits}, datasets.own_splits
  monkeypatch.setattr(
      datasets,
      'own_splits',
      lambda name, *_, **how: own_splits(name) if name == 'cifar10' else own,
  )


def killed_and_unbroken(launcher, folder, module):
  """Returns a killed and resumed run, an unbroken one, and its output."""
  install = _INSTALL.format(module=module)
  killed, unbroken = folder / 'killed', folder / 'unbroken'
  status, said = launcher.run(killed, install + _KILL, **_EVERY)
  assert status == -signal.SIGKILL, said
  status, said = launcher.run(killed, install, **_EVERY)
  assert status == 0, said
  assert 'Resuming from the checkpoint of step 3.' in said
  status, said = launcher.run(unbroken, install)
  assert status == 0, said
  return killed, unbroken, said


def check_equal(*runs):
  """Asserts that two runs end with the same state and the same epochs."""
  sums = [tiny_runs.checksums(run, 7) for run in runs]
  assert sums[0] == sums[1]
  epochs = [
      [entry for entry in tiny_runs.figures(run) if entry['kind'] == 'epoch']
      for run in runs
  ]
  assert epochs[0] == epochs[1]


def evaluate(folder, out, *options) -> int:
  """Runs the evaluate command on the validation images; returns its status."""
  argv = ['evaluate', str(folder), '--step=latest', '--split=val']
  return commands.main([*argv, f'--out={out}', *options])


def main(install):
  """Evaluates the run `argv[1]` on all available devices, into `argv[2]`."""
  with pytest.MonkeyPatch.context() as monkeypatch:
    install(monkeypatch)
    sys.exit(guard.guarded(lambda: evaluate(*sys.argv[1:])))
