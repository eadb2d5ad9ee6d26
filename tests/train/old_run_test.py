"""Tests that a run folder of version 0.1.0 still evaluates and resumes.

It was written by `train.py --config=configs/digits_retention.py:smoke` with
`num_epochs=12`, `eval_every_epochs=12`, `optimizer.warmup_epochs=1.0`.
"""

import json
import pathlib
import shutil

import jax
import pytest
import tiny_parts

from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.runs import run_folder

_GOLDEN = pathlib.Path(__file__).parents[1] / 'fixtures' / 'golden_run'


@pytest.fixture
def golden(tmp_path):
  return pathlib.Path(shutil.copytree(_GOLDEN, tmp_path / 'run'))


def test_old_weights_give_the_figures_of_their_summary(golden):
  summary = json.loads((golden / 'summary.json').read_text())['best']
  report = evaluate_run.evaluate_run(golden, step='best')
  assert report['step'] == summary['step']
  assert report['accuracy'] == summary['test_accuracy']
  assert report['loss'] == pytest.approx(summary['test_loss'], rel=1e-5)


def test_an_old_run_resumes(golden):
  """The whole state, optimizer included, is read and its checksums hold."""
  with tiny_parts.open_run(run_folder.load_config(golden), golden) as run:
    restored = run.checkpoints.restore_latest(run.trainer.target)
  assert restored.step == restored.tree.step == 243
  counts = [
      leaf for leaf in jax.tree.leaves(restored.tree.opt_state) if not leaf.ndim
  ]
  assert counts and all(count == 243 for count in counts)
