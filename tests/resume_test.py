"""Trains, kills, resumes and evaluates on the digits, as a user would.

The resumed run must equal an unbroken one bit for bit.
"""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import processes
import pytest
import tiny_parts
import tiny_runs

from gswinrmt_jax.commands import main as commands
from gswinrmt_jax.runs import plots

ROOT = pathlib.Path(__file__).parent.parent
# One of the four stages, trained on the smallest split. Epochs end at steps 3,
# 6, 9, 12, 15, 18, 21, 25, ...
IMAGES, BATCH = 200, 64
FIELDS = {
    'num_epochs': 500,
    'data.train_split': 'val',
    'data.val_split': 'test',
    'model.widths': '(8,)',
    'model.depths': '(1,)',
    'model.num_heads': '(2,)',
    'model.mlp_ratios': '(3.0,)',
    'model.layer_scale': '(1e-2,)',
    'model.decay_ranges': '(4.0,)',
    'model.stem': 'patch',
    'model.position_conv': 'False',
    'model.ffn_conv': 'False',
    'model.ffn_norm': 'False',
    'model.lce': 'none',
}


@pytest.fixture
def compiled(tmp_path):
  """Yields the folder of the compilation cache that all processes share."""
  folder = tmp_path / 'compiled'
  with tiny_parts.compiled_once(folder):
    yield folder


def _arguments(folder, **fields):
  return [
      '--config=digits_retention:smoke',
      f'--workdir={folder}',
      *(f'--config.{name}={v}' for name, v in {**FIELDS, **fields}.items()),
  ]


def _kill_in_an_epoch(folder, compiled):
  """Starts a run and kills it after its second checkpoint."""
  said = folder.parent / 'output'
  with said.open('w') as output:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / 'train.py'), *_arguments(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            'JAX_COMPILATION_CACHE_DIR': str(compiled),
            'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        },
        stdout=output,
        stderr=output,
    )
    try:
      second = folder / 'checkpoints' / '6'
      processes.until(second.exists, 300, [process], said.read_text)
    finally:  # Otherwise the run would continue for 500 epochs.
      process.send_signal(signal.SIGKILL)
      assert process.wait() == -signal.SIGKILL


def test_killed_resumed_and_evaluated(tmp_path, compiled, capsys, monkeypatch):
  killed, unbroken = tmp_path / 'killed', tmp_path / 'unbroken'
  _kill_in_an_epoch(killed, compiled)
  monkeypatch.setattr(plots, 'draw_curves', tiny_parts.sketch_curves)
  steps = [
      int(path.name)
      for path in (killed / 'checkpoints').iterdir()
      if path.name.isdecimal()
  ]
  ends = ((e, e * IMAGES // BATCH) for e in itertools.count(1))
  epoch, last = next(end for end in ends if end[1] > max(steps))
  for folder in (killed, unbroken):
    arguments = _arguments(folder, stop_after_epochs=epoch)
    assert commands.main(['train', *arguments]) == 0
    said = capsys.readouterr().out
    resumed = f'Resuming from the checkpoint of step {max(steps)}.' in said
    assert resumed == (folder == killed)

  sums = [tiny_runs.checksums(run, last) for run in (killed, unbroken)]
  assert sums[0] == sums[1]
  assert tiny_runs.figures(killed) == tiny_runs.figures(unbroken)

  evaluate = ['evaluate', str(killed), '--step=latest', '--split=val']
  assert commands.main(evaluate) == 0
  assert 'images                             300' in capsys.readouterr().out
  report = json.loads((killed / f'evaluation_val_{last}.json').read_text())
  summary = json.loads((unbroken / 'summary.json').read_text())
  assert report['accuracy'] == summary['last']['val_accuracy']
  assert report['count'] == 300
  assert 'test_accuracy' not in summary['last']  # stopped: not tested yet
