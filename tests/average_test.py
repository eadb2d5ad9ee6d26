"""The moving average, by itself and in a run."""

import io
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import average, build, train_loop
from gswinrmt_jax.weights import load

pytestmark = pytest.mark.usefixtures('usual_kernels')


def test_the_released_decay():
  """Of 2,048 images 0.99984; of 512 what the recipe says."""
  assert average.step_decay(0.99996, 512) == 0.99996
  assert f'{average.step_decay(0.99996, 2048):.5f}' == '0.99984'
  assert average.step_decay(0.81, 256) == pytest.approx(0.9)
  assert average.step_decay(0.0, 64) == 0


def test_the_update_over_many_steps():
  """The average of w = t from 5 is a sum that can be written down.

  d^t 5 + (1 - d) sum_s d^(t - s) s, s from 1 to t.
  """
  decay, mean = 0.875, {'a': jnp.full((2,), 5.0)}
  for step in range(1, 7):
    mean = average.update(mean, {'a': jnp.full((2,), float(step))}, decay)
  terms = [decay ** (6 - step) * step for step in range(1, 7)]
  expected = decay**6 * 5 + (1 - decay) * sum(terms)
  np.testing.assert_allclose(mean['a'], expected, rtol=1e-6)


def test_what_does_not_change_keeps_every_bit():
  """Thousands of steps: `d * w + (1 - d) * w` would wander off."""
  value = jax.random.normal(jax.random.key(0), (101,))
  mean = jax.lax.fori_loop(
      0, 3000, lambda _, mean: average.update(mean, value, 0.99984), value
  )
  np.testing.assert_array_equal(mean, value)


def test_names():
  raw, ema = {'params': 1, 'batch_stats': 2}, {'params': 3, 'batch_stats': 4}
  both = average.beside(raw, ema)
  assert both == {**raw, 'ema': ema}
  assert average.by_name(both) == {'raw': raw, 'ema': ema}
  assert average.by_name(average.beside(raw, None)) == {'raw': raw}
  figures = average.merged({'raw': {'accuracy': 1}, 'ema': {'accuracy': 2}})
  assert figures == {'accuracy': 1, 'ema_accuracy': 2}


def test_the_better_of_both():
  assert average.better({'accuracy': 0.5}) == (0.5, 'raw')
  for raw, ema, which in ((2, 3, 'ema'), (3, 2, 'raw'), (3, 3, 'raw')):
    figures = {'val_accuracy': raw, 'val_ema_accuracy': ema}
    assert average.better(figures, 'val_') == (3, which)


@pytest.mark.parametrize('value', [-0.1, 1.0, float('nan')])
def test_a_decay_out_of_range_is_named(value):
  with pytest.raises(UserError, match=r'config\.ema_decay is'):
    build.ema_decay(tiny_parts.recipe(ema_decay=value))


@pytest.fixture(scope='module', autouse=True)
def _compiled_once(tmp_path_factory):
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
  tiny_parts.install(monkeypatch)


# Rough steps, of which sometimes the weights and sometimes their average are
# the better: a decay of 0.85 for each step of 4 images.
ROUGH = {'ema_decay': 1e-9, 'optimizer.learning_rate': 1.0}


def _train(folder, **changes):
  stream = io.StringIO()
  recipe = tiny_parts.recipe(**{**ROUGH, **changes})
  return (
      train_loop.train(recipe, folder, metrics_log.Terminal(stream)),
      stream.getvalue(),
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('run') / 'averaged'


@pytest.fixture
def run(folder):
  """A whole run with an average; trained once."""
  if not folder.exists():
    _, said = _train(folder)
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


def _has_average(meta):
  return any(name.startswith('ema/') for name in meta['crc32'])


def test_both_are_validated_and_either_may_be_the_best(run):
  epochs = _epochs(run)
  assert {_better(entry) for entry in epochs.values()} == {'raw', 'ema'}
  assert all(e['val_ema_loss'] != e['val_loss'] for e in epochs.values())
  top = {
      step: max(entry['val_accuracy'], entry['val_ema_accuracy'])
      for step, entry in epochs.items()
  }
  best = max(top, key=lambda step: (top[step], step))
  summary = json.loads((run / 'summary.json').read_text())
  assert summary['best']['step'] == best
  assert summary['best']['weights'] == _better(epochs[best]) == 'ema'
  assert best != max(epochs)  # else it would be kept anyway
  for step in {best, *sorted(epochs)[-2:]}:
    assert _meta(run, step)['weights'] == _better(epochs[step])
    assert _has_average(_meta(run, step))
  said = (run / 'said').read_text()
  entry = epochs[best]
  line = f'EMA loss {entry["val_ema_loss"]:.3f}, accuracy '
  assert line + f'{entry["val_ema_accuracy"]:.2%} (best ' in said
  assert f', epoch {entry["epoch"]}, EMA)' in said
  row = next(x for x in said.splitlines() if x.startswith('better on valid'))
  assert row.split()[-2:] == [summary['last']['weights'], 'ema']


def test_the_test_is_of_both(run):
  """And `evaluate` finds the same, whichever it is told to take."""
  summary = json.loads((run / 'summary.json').read_text())
  quiet = metrics_log.Terminal(io.StringIO())
  for name, step in (('last', 'latest'), ('best', 'best')):
    for which, prefix in (('raw', ''), ('ema', 'ema_')):
      report = evaluate_run.evaluate_run(
          run, step=step, which=which, terminal=quiet
      )
      assert report['weights'] == which
      for figure in ('accuracy', 'loss'):
        assert report[figure] == pytest.approx(
            summary[name][f'test_{prefix}{figure}'], rel=1e-6
        )
      suffix = '_ema' if which == 'ema' else ''
      assert (run / f'evaluation_test_{report["step"]}{suffix}.json').exists()


def test_the_better_is_taken_unless_told_otherwise(run):
  for step, entry in _epochs(run).items():
    if not (run / 'checkpoints' / str(step)).exists():
      continue
    found = load.load(run, step=step)
    assert found.which == _better(entry)
    kind = 'EMA' if found.which == 'ema' else 'raw'
    assert found.origin.endswith(
        f'step {step} (epoch {entry["epoch"]}), {kind}'
    )
    raw = load.load(run / 'checkpoints' / str(step), which='raw')
    ema = load.load(run, step=step, which='ema')
    same = jax.tree.map(
        lambda a, b: bool(jnp.all(a == b)), raw.variables, ema.variables
    )
    assert not any(jax.tree.leaves(same)), same
  assert load.load(run).which == 'ema'


def test_cut_and_resumed_equals_unbroken_bit_for_bit(run, tmp_path):
  _train(tmp_path / 'cut', stop_after_epochs=2)
  _, said = _train(tmp_path / 'cut')
  assert 'Going on from the checkpoint of step 12.' in said
  assert _meta(tmp_path / 'cut', 25)['crc32'] == _meta(run, 25)['crc32']
  times = ('seconds', 'images_per_second', 'data_wait')
  for one, other in zip(
      metrics_log.read_metrics(tmp_path / 'cut'),
      metrics_log.read_metrics(run),
      strict=True,
  ):
    for name in one.keys() - set(times):
      assert one[name] == other[name], name


def test_an_average_that_changed_on_disk_is_not_taken(run, tmp_path):
  copy = shutil.copytree(run, tmp_path / 'copy')
  path = copy / 'checkpoints' / '25' / 'meta' / 'metadata'
  meta = json.loads(path.read_text())
  meta['crc32']['ema/params/conv/kernel'] ^= 1
  path.write_text(json.dumps(meta))
  (copy / 'checkpoints' / '25' / 'files.json').unlink()  # which would tell
  with pytest.raises(
      UserError, match='checksum of ema/params/conv/kernel differs'
  ):
    load.load(copy, step=25, which='raw', warn=print)


def test_an_average_does_not_change_the_training(run, tmp_path):
  _train(tmp_path / 'plain', ema_decay=0.0)
  with_it, without = _meta(run, 25)['crc32'], _meta(tmp_path / 'plain', 25)
  assert not _has_average(without)
  assert without['crc32'].items() < with_it.items()
  assert 'EMA' not in load.load(tmp_path / 'plain').origin
  with pytest.raises(UserError, match='has no average of its weights'):
    load.load(tmp_path / 'plain', which='ema')


def test_a_run_that_starts_from_weights_averages_from_them(run, tmp_path):
  other = train_loop.Run(
      recipes.resolve(tiny_parts.recipe(**ROUGH, init_from=str(run))),
      tmp_path / 'second',
      metrics_log.Terminal(stream := io.StringIO()),
  )
  make_state, _ = other._restore_or_create()
  state = make_state()
  other.close()
  assert ', EMA:' in stream.getvalue()
  source = load.load(run, which='ema').variables
  jax.tree.map(np.testing.assert_array_equal, state.ema, source)
  jax.tree.map(np.testing.assert_array_equal, state.variables, source)
  # Buffers of their own: the step donates both.
  buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
  assert len(set(buffers)) == len(buffers)


def test_weights_without_a_run_have_no_choice(tmp_path):
  (tmp_path / 'model.safetensors').write_bytes(b'')
  with pytest.raises(UserError, match='no averages to choose from'):
    load.load(tmp_path / 'model.safetensors', which='ema')
