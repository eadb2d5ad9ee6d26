"""A run folder of an earlier version: later ones must read all of it.

Made by version 0.1.0: `train.py --config=configs/digits_retention.py:smoke`
with `num_epochs=12`, `eval_every_epochs=12`, `optimizer.warmup_epochs=1.0`.
"""

import io
import json
import pathlib
import shutil

import jax
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.runs import metrics_log, run_folder
from gswinrmt_jax.train import train_loop

_FOLDER = pathlib.Path(__file__).parent / 'data' / 'golden_run'


@pytest.fixture(name='folder')
def _folder(tmp_path):
  return pathlib.Path(shutil.copytree(_FOLDER, tmp_path / 'run'))


def test_its_weights_give_the_figures_of_its_summary(folder):
  summary = json.loads((folder / 'summary.json').read_text())['best']
  report = evaluate_run.evaluate_run(folder, step='best')
  assert report['step'] == summary['step']
  assert report['accuracy'] == summary['test_accuracy']
  assert report['loss'] == pytest.approx(summary['test_loss'], rel=1e-5)


def test_training_would_go_on_from_it(folder):
  """The whole state is read and its checksums hold, optimiser and all."""
  config = run_folder.load_config(folder)
  run = train_loop.Run(
      recipes.resolve(config), folder, metrics_log.Terminal(io.StringIO())
  )
  restored = run.checkpoints.restore_latest(run.parts.target)
  run.close()
  assert restored.step == restored.tree.step == 243
  assert restored.meta['data'] == {'seed': 0, 'next_batch': 243}
  counts = [
      leaf for leaf in jax.tree.leaves(restored.tree.opt_state) if not leaf.ndim
  ]
  assert counts and all(count == 243 for count in counts)
