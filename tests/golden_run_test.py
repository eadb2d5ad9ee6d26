"""A run folder of an earlier version: later ones must read all of it.

Made by version 0.1.0: `train.py --config=configs/digits_retention.py:smoke`
with `num_epochs=12`, `eval_every_epochs=12`, `optimizer.warmup_epochs=1.0`.
"""

import io
import json
import pathlib
import shutil

import pytest

from gswinrmt_jax.training import evaluate_run, log, loop, run_folder

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


def test_training_goes_on_from_it(folder):
  """The whole state is read, optimiser and all."""
  output = io.StringIO()
  config = run_folder.load_config(folder)
  with config.unlocked():
    config.num_epochs = 13
    config.eval_every_epochs = 13
  # As if it had been stopped after 12 epochs of 13.
  run_folder.write_json(folder / 'config.json', config.to_dict())
  summary = loop.train(config, folder, log.Terminal(output))
  assert 'checkpoint of step 243' in output.getvalue()
  assert summary['steps'] == 263
  assert summary['last']['val_accuracy'] > 0.9
