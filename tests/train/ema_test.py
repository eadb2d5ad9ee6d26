"""Tests the moving average of the weights (EMA), from training to evaluation.

The steps are so large that sometimes the weights and sometimes their average
are better. The decay is 0.85 per step of 4 images.
"""

import io
import json

import jax
import numpy as np
import pytest
import tiny_parts

from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.weights import load

pytestmark = pytest.mark.usefixtures(
    'compiled_once', 'usual_kernels', 'tiny_installed'
)


_ROUGH = {'ema_decay': 1e-9, 'optimizer.learning_rate': 1.0}


@pytest.fixture(scope='module')
def averaged_run(tmp_path_factory):
  """Returns the folder of a whole run with an average."""
  folder = tmp_path_factory.mktemp('averaged') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    tiny_parts.install(patch)
    _, said = tiny_parts.train(folder, **_ROUGH)
  (folder / 'said').write_text(said)
  return folder


def _epochs(folder):
  entries = metrics_log.read_metrics(folder)
  return {e['step']: e for e in entries if e['kind'] == 'epoch'}


def _meta(folder, step):
  path = folder / 'checkpoints' / str(step) / 'meta' / 'metadata'
  return json.loads(path.read_text())


def _better(entry):
  return 'ema' if entry['val_ema_accuracy'] > entry['val_accuracy'] else 'raw'


def test_both_are_validated_and_either_may_be_the_best(averaged_run):
  epochs = _epochs(averaged_run)
  assert {_better(entry) for entry in epochs.values()} == {'raw', 'ema'}
  assert all(e['val_ema_loss'] != e['val_loss'] for e in epochs.values())
  top = {
      step: max(entry['val_accuracy'], entry['val_ema_accuracy'])
      for step, entry in epochs.items()
  }
  best = max(top, key=lambda step: (top[step], step))
  summary = json.loads((averaged_run / 'summary.json').read_text())
  assert summary['best']['step'] == best
  assert summary['best']['weights'] == _better(epochs[best])
  for step in {best, *sorted(epochs)[-2:]}:
    assert _meta(averaged_run, step)['weights'] == _better(epochs[step])
  said = (averaged_run / 'said').read_text()
  entry = epochs[best]
  line = f'EMA val loss {entry["val_ema_loss"]:.3f}, val acc '
  assert line + f'{entry["val_ema_accuracy"]:.2%} (best ' in said


def test_the_better_of_both_is_taken_at_each_step(averaged_run):
  epochs, found = _epochs(averaged_run), {}
  for path in (averaged_run / 'checkpoints').iterdir():
    if path.name.isdecimal():
      step = int(path.name)
      found[step] = load.load(averaged_run, step=step).which
  assert found == {step: _better(epochs[step]) for step in found}
  assert 'raw' in found.values()


def test_the_test_is_of_both(averaged_run):
  """`evaluate` agrees for either choice of weights."""
  summary = json.loads((averaged_run / 'summary.json').read_text())
  quiet = Terminal(io.StringIO())
  for name, step in (('last', 'latest'), ('best', 'best')):
    for which, prefix in (('raw', ''), ('ema', 'ema_')):
      report = evaluate_run.evaluate_run(
          averaged_run, step=step, which=which, terminal=quiet
      )
      assert report['weights'] == which
      for figure in ('accuracy', 'loss'):
        assert report[figure] == pytest.approx(
            summary[name][f'test_{prefix}{figure}'], rel=1e-6
        )


def test_an_average_changes_no_training(averaged_run, tmp_path):
  """That it resumes bit for bit: `faults_disk_test`, `faults_signals_test`."""
  with_it = _meta(averaged_run, 25)['crc32']
  tiny_parts.train(tmp_path / 'plain', **{**_ROUGH, 'ema_decay': 0.0})
  without = _meta(tmp_path / 'plain', 25)['crc32']
  assert not any(name.startswith('ema/') for name in without)
  assert without.items() < with_it.items()


def test_a_run_from_weights_starts_its_average_at_them(averaged_run, tmp_path):
  config = tiny_parts.recipe(**_ROUGH, init_from=str(averaged_run))
  with tiny_parts.open_run(
      config, tmp_path / 'second', stream := io.StringIO()
  ) as run:
    source = jax.device_get(run.init_from.variables)
    _, batch = next(run.data.train_batches(0, 1))
    state = run.init_state(batch)
  assert f'Starting from {averaged_run}' in stream.getvalue()
  jax.tree.map(np.testing.assert_array_equal, state.ema, source)
  jax.tree.map(np.testing.assert_array_equal, state.variables, source)
  # They must not share buffers, because the step donates both.
  buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
  assert len(set(buffers)) == len(buffers)
