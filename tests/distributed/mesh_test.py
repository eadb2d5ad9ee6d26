"""Tests that results do not depend on devices, processes or image storage."""

import io
import json
import signal

import chex
import jax
import jax.numpy as jnp
import mesh_program
import numpy as np
import processes
import pytest
import several

from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import train_loop

pytestmark = pytest.mark.usefixtures('compiled_once')


def test_batches_are_placed_and_targets_keep_shape_and_dtype():
  here = mesh.Devices()
  batch = here.put_batch({'image': np.ones((6, 2)), 'label': np.arange(6)})
  assert batch['label'].tolist() == list(range(6))
  target = here.target({'a': jax.ShapeDtypeStruct((2, 3), jnp.int32)})
  assert target['a'].shape == (2, 3) and target['a'].dtype == jnp.int32
  assert target['a'].sharding == here.replicated


def test_a_batch_that_does_not_divide_into_pairs_is_refused(monkeypatch):
  here = mesh.Devices()
  here.check_batch_size(7, pairs=True)
  with pytest.raises(UserError, match=r'batch_size is 6: .* multiple of 4, '):
    here.check_batch_size(6, accumulate_steps=2, pairs=True)
  monkeypatch.setattr(here, '_count', 3)
  here.check_batch_size(6, pairs=True)
  with pytest.raises(UserError, match=r'is 9: .* of 3 .*or use fewer devices'):
    here.check_batch_size(9, pairs=True)
  here.check_batch_size(9, pairs=False)
  with pytest.raises(UserError, match=r'multiple of 6, an image for each of 3'):
    here.check_batch_size(9, accumulate_steps=2, pairs=False)
  with pytest.raises(UserError, match=r'multiple of 12, .*accumulate_steps=2'):
    here.check_batch_size(6, accumulate_steps=2, pairs=True)
  assert [here.rounded_up(size) for size in (1, 3, 4)] == [3, 3, 6]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
  mesh_program.install(monkeypatch)


def _last_states(tmp_path, *folders):
  with train_loop.open_run(
      mesh_program.recipe(), tmp_path / 'shapes', Terminal(io.StringIO())
  ) as run:
    target = run.trainer.target
  return [
      checkpointer.Checkpointer(folder / 'checkpoints', read_only=True)
      .restore(18, target)
      .tree
      for folder in folders
  ]


def _figures(folder):
  """Returns the logged metrics of each step and epoch, without times."""
  names = 'step loss accuracy grad_norm val_loss val_ema_loss val_accuracy'
  return [
      {name: entry[name] for name in names.split() if name in entry}
      for entry in metrics_log.read_metrics(folder)
  ]


def _check_evaluation(folder):
  """Checks that the 11 images count once each, and that one device agrees."""
  (path,) = folder.glob('evaluation_val_*.json')
  on_eight = json.loads(path.read_text())
  path.unlink()
  assert mesh_program.evaluate(folder) == 0
  on_one = json.loads(path.read_text())
  assert on_eight['count'] == np.sum(on_eight['confusion']) == 11
  for name in ('loss', 'accuracy', 'calibration_error', 'confusion'):
    np.testing.assert_allclose(on_eight[name], on_one[name], rtol=1e-5)


def _changes(**changes):
  return json.dumps({name.replace('__', '.'): v for name, v in changes.items()})


def test_one_eight_and_two_times_four_devices_go_on_from_each_other(tmp_path):
  """Each checkpoint is restored on another layout than the one that wrote it.

  The 11 validation images do not divide over the devices.
  """
  mesh_program.train(tmp_path / 'one')
  moving = tmp_path / 'moving'
  mesh_program.train(moving, stop_after_epochs=3)
  eight = several.start(
      'mesh_program.py',
      moving,
      '',
      _changes(stop_after_epochs=6),
      'evaluate',
      devices=8,
  )
  several.said(eight)
  _check_evaluation(moving)
  several.said(
      *several.two(
          'mesh_program.py',
          moving,
          'JOIN',
          _changes(),
          devices=4,
      )
  )
  starts = json.loads((moving / 'environment.json').read_text())
  assert [(s['step'], s['device_count']) for s in starts] == [
      (0, 1),
      (4, 8),
      (9, 8),
  ]
  one = _figures(tmp_path / 'one')
  for found, expected in zip(_figures(moving), one, strict=True):
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
  expected, found = _last_states(tmp_path, tmp_path / 'one', moving)
  chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)
  moved = mesh_program.train(moving)
  assert 'is complete' in moved


@pytest.mark.slow
def test_a_signal_to_one_process_ends_both_after_the_same_step(tmp_path):
  """Both stop where the next metrics are read, with a checkpoint."""
  endless = _changes(
      num_epochs=100_000, eval_every_epochs=100_000, log_every_steps=7
  )
  running = several.two(
      'mesh_program.py', tmp_path / 'run', 'JOIN', endless, devices=4
  )
  processes.until((tmp_path / 'run' / 'metrics.jsonl').exists, 180, running)
  processes.until(
      lambda: len(metrics_log.read_metrics(tmp_path / 'run')) > 3, 180, running
  )
  running[1].send_signal(signal.SIGTERM)
  texts = several.said(*running, status=128 + signal.SIGTERM)
  step = metrics_log.read_metrics(tmp_path / 'run')[-1]['step']
  assert step % 7 == 0
  for text in texts:
    assert f'stopped by SIGTERM after step {step:,}, with a' in text
  checkpoints = checkpointer.Checkpointer(tmp_path / 'run' / 'checkpoints')
  assert checkpoints.steps() == [step]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_both(tmp_path):
  broken = _changes(**{'optimizer.learning_rate': 1e30})
  running = several.two(
      'mesh_program.py', tmp_path / 'run', 'JOIN', broken, devices=4
  )
  for text in several.said(*running, status=1):
    assert 'loss or gradient not finite at step' in text
