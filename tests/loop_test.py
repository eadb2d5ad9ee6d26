"""A run, with a tiny model and images in place of the real ones."""

import io
import json
import shutil

import chex
import jax
import numpy as np
import pytest
import tiny
import tiny_parts
import tiny_runs

from gswinrmt_jax import recipes
from gswinrmt_jax.checkpoints import checkpointer
from gswinrmt_jax.data import datasets
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log, progress
from gswinrmt_jax.train import build, setup, train_loop
from gswinrmt_jax.train import schedule as plan_lib
from gswinrmt_jax.train import train_state as state_lib

pytestmark = pytest.mark.usefixtures('usual_kernels')


@pytest.fixture(scope='module', autouse=True)
def _compiled_once(tmp_path_factory):
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
  tiny_parts.install(monkeypatch)


def _train(folder, **changes):
  stream = io.StringIO()
  summary = train_loop.train(
      tiny_parts.recipe(**changes), folder, metrics_log.Terminal(stream)
  )
  return summary, stream.getvalue()


def _last_state(folder):
  """Everything that was saved last."""
  _, tx = build.make_optimizer(
      tiny_parts.recipe(), plan_lib.make_plan(tiny_parts.recipe(), 25)
  )
  shapes = jax.eval_shape(
      lambda: state_lib.create(tiny.Tiny(), tx, jax.random.key(0), (6, 7, 3))
  )
  checkpoints = checkpointer.Checkpointer(
      folder / 'checkpoints', read_only=True
  )
  restored = checkpoints.restore_latest(mesh.Devices().target(shapes))
  checkpoints.close()
  assert restored.step == checkpoints.steps()[-1]
  assert restored.meta['data'] == {'seed': 0, 'next_batch': restored.step}
  return restored.tree


def _without_times(folder):
  times = ('seconds', 'images_per_second', 'data_wait')
  return [
      {name: value for name, value in entry.items() if name not in times}
      for entry in metrics_log.read_metrics(folder)
  ]


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
  return tmp_path_factory.mktemp('run') / 'unbroken'


@pytest.fixture
def unbroken_run(unbroken):
  """The folder of a whole run; trained once."""
  if not (unbroken / 'summary.json').exists():
    _train(unbroken)
  return unbroken


def test_a_run_leaves_all_that_it_promises(unbroken_run):
  names = {path.name for path in unbroken_run.iterdir()}
  assert names >= {
      'augmented_batch.png',
      'checkpoints',
      'config.json',
      'curves.png',
      'environment.json',
      'metrics.jsonl',
      'summary.json',
      'tensorboard',
  }
  entries = metrics_log.read_metrics(unbroken_run)
  intervals = [e['step'] for e in entries if e['kind'] == 'train']
  epochs = [e['step'] for e in entries if e['kind'] == 'epoch']
  assert epochs == [6, 12, 18, 25]
  assert intervals == [5, 6, 10, 12, 15, 18, 20, 25]
  first = entries[0]
  assert 0 < first['gamma_min'] <= first['gamma_max'] < 1
  assert first['grad_norm'] > 0
  # Step 5 was made with the rate of step 4, of a warm-up of 6.
  np.testing.assert_allclose(first['learning_rate'], 0.05 * 4 / 6, rtol=1e-6)
  assert entries[-1]['val_loss'] < entries[2]['val_loss']
  summary = json.loads((unbroken_run / 'summary.json').read_text())
  assert summary['last']['step'] == summary['steps'] == 25
  best = max(entries, key=lambda e: e.get('val_accuracy', -1))
  assert summary['best']['val_accuracy'] == best['val_accuracy']


def test_cut_and_resumed_equals_unbroken_bit_for_bit(unbroken_run, tmp_path):
  _train(tmp_path / 'cut', stop_after_epochs=2)
  # A damaged summary of an earlier end is in nobody's way.
  (tmp_path / 'cut' / 'summary.json').write_text('{')
  _, said = _train(tmp_path / 'cut')
  assert 'Going on from the checkpoint of step 12.' in said
  chex.assert_trees_all_equal(
      _last_state(tmp_path / 'cut'), _last_state(unbroken_run)
  )
  assert _without_times(tmp_path / 'cut') == _without_times(unbroken_run)
  starts = json.loads((tmp_path / 'cut' / 'environment.json').read_text())
  assert [start['step'] for start in starts] == [0, 12]


def test_images_on_the_device_change_no_bit(unbroken_run, tmp_path):
  _train(tmp_path / 'run', **{'data.storage': 'device'})
  assert _without_times(tmp_path / 'run') == _without_times(unbroken_run)
  chex.assert_trees_all_equal(
      _last_state(tmp_path / 'run'), _last_state(unbroken_run)
  )


def test_several_steps_a_dispatch_resume_bit_for_bit(unbroken_run, tmp_path):
  """Dispatches are cut at other steps in the first half, and elsewhere."""
  several = {'steps_per_dispatch': 4, 'data.storage': 'device'}
  _train(tmp_path / 'whole', **several)
  _train(tmp_path / 'cut', **several, stop_after_epochs=2, log_every_steps=3)
  _, said = _train(tmp_path / 'cut', **several)
  assert 'Going on from the checkpoint of step 12.' in said
  whole = _last_state(tmp_path / 'whole')
  chex.assert_trees_all_equal(_last_state(tmp_path / 'cut'), whole)
  figures = _without_times(tmp_path / 'whole')
  assert _without_times(tmp_path / 'cut')[-7:] == figures[-7:]
  # Single steps are another program. After Adam a bias before BatchNorm, whose
  # gradient is all rounding, is another too, and what evaluation sees of it.
  losses = [
      [entry['loss'] for entry in run if entry['kind'] == 'train']
      for run in (figures, _without_times(unbroken_run))
  ]
  np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_failure_between_checkpoints_is_made_good(
    unbroken_run, tmp_path, monkeypatch
):
  """Entries past the last checkpoint must not count twice."""

  class CutOffError(Exception):
    pass

  told = progress.Progress.interval

  def interval(self, step, *rest):
    told(self, step, *rest)
    if step == 10:
      raise CutOffError

  with monkeypatch.context() as patch, pytest.raises(CutOffError):
    patch.setattr(progress.Progress, 'interval', interval)
    _train(tmp_path / 'run')
  assert metrics_log.read_metrics(tmp_path / 'run')[-1]['step'] == 10
  _train(tmp_path / 'run')
  chex.assert_trees_all_equal(
      _last_state(tmp_path / 'run'), _last_state(unbroken_run)
  )
  assert _without_times(tmp_path / 'run') == _without_times(unbroken_run)


@pytest.fixture
def loaded(monkeypatch):
  """Names of the splits that are loaded from here on."""
  names = []
  monkeypatch.setattr(
      datasets,
      'load',
      lambda name, split, data_dir, **how: names.append(split)
      or tiny_parts.SPLITS[split],
  )
  return names


def test_a_complete_run_is_not_tested_again(unbroken_run, loaded):
  before = (unbroken_run / 'metrics.jsonl').read_bytes()
  summary, said = _train(unbroken_run)
  assert 'is complete' in said and loaded == ['train', 'val']
  assert summary == json.loads((unbroken_run / 'summary.json').read_text())
  assert (unbroken_run / 'metrics.jsonl').read_bytes() == before


def test_what_ended_behind_its_last_checkpoint_is_drawn_and_summed_up(
    unbroken_run, tmp_path
):
  folder = shutil.copytree(unbroken_run, tmp_path / unbroken_run.name)
  (folder / 'summary.json').unlink()
  (folder / 'curves.png').rename(folder / 'curves.png.part')
  _train(folder)
  for name in ('summary.json', 'curves.png'):
    assert (folder / name).read_bytes() == (unbroken_run / name).read_bytes()
  names = {path.name for path in unbroken_run.iterdir()}
  assert {path.name for path in folder.iterdir()} == names


def test_a_damaged_summary_does_not_open_the_test_split_again(
    unbroken_run, loaded, tmp_path
):
  folder = shutil.copytree(unbroken_run, tmp_path / 'run')
  path = folder / 'summary.json'
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(UserError, match='put it back from a copy'):
    _train(folder)
  assert 'test' not in loaded


@pytest.mark.parametrize(
    ('field', 'value', 'said'),
    [
        ('optimizer.b1', 0.8, r'optimizer\.b1 is 0\.9 there and 0\.8'),
        ('steps_per_dispatch', 4, 'steps_per_dispatch is 0 there and 4'),
    ],
)
def test_another_recipe_is_refused(unbroken_run, field, value, said):
  with pytest.raises(UserError, match=said):
    _train(unbroken_run, **{field: value})


def test_checkpoints_of_another_recipe_are_refused(unbroken_run, tmp_path):
  """Put into a folder that says it is this one's."""
  for name in ('checkpoints', 'config.json', 'data.json'):
    copy = shutil.copytree if name == 'checkpoints' else shutil.copy
    copy(unbroken_run / name, tmp_path / name)
  config = json.loads((tmp_path / 'config.json').read_text())
  config['optimizer']['weight_decay'] = 0.5
  config['data']['name'] = 'cifar10'
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(UserError) as refused:
    _train(
        tmp_path,
        **{'optimizer.weight_decay': 0.5, 'data.name': 'cifar10'},
    )
  message = str(refused.value)
  assert f'{tmp_path / "checkpoints" / "25"} belongs to another' in message
  assert 'data.name is ' in message and ' there and ' in message
  assert 'optimizer.weight_decay is 0.05 there and 0.5 here' in message
  assert (tmp_path / 'checkpoints' / '25').is_dir()


def test_the_seed_decides(unbroken_run, tmp_path):
  _train(tmp_path / 'same')
  _train(tmp_path / 'other', seed=1)
  kept = tiny_runs.checksums(unbroken_run, 25)
  assert tiny_runs.checksums(tmp_path / 'same', 25) == kept
  other = tiny_runs.checksums(tmp_path / 'other', 25)
  assert other.keys() == kept.keys()
  assert other['params/conv/kernel'] != kept['params/conv/kernel']
  first, *_ = tiny_runs.figures(tmp_path / 'other')
  assert first['loss'] != tiny_runs.figures(unbroken_run)[0]['loss']


def test_no_test_split_no_test(tmp_path):
  summary, said = _train(
      tmp_path / 'run', **{'data.test_split': '', 'num_epochs': 2}
  )
  assert 'val_accuracy' in summary['best']
  assert not [name for name in summary['best'] if name.startswith('test')]
  assert 'test accuracy' not in said and 'not tested' not in said


def test_a_state_that_cannot_be_made_ends_the_run_and_leaves_it_usable(
    tmp_path, monkeypatch
):
  """It is made while a thread compiles the step."""

  def fail(_):
    raise UserError('there is no room for a state')

  with monkeypatch.context() as patch:
    patch.setattr(setup.Parts, 'create_state', fail)
    with pytest.raises(UserError, match='no room for a state'):
      _train(tmp_path)
  summary, _ = _train(tmp_path)
  assert summary['last']['step'] == 25


def test_steps_and_validation_are_compiled_as_the_recipe_says(monkeypatch):
  plain, told = jax.jit, []

  def jit(function, **options):
    told.append(options.get('compiler_options'))
    return plain(function, **options)

  monkeypatch.setattr(jax, 'jit', jit)
  for effort, times in (('full', 0), ('quick', 2)):
    recipe = tiny_parts.recipe(compile_effort=effort)
    setup.make_parts(recipes.resolve(recipe))
    assert told.count(mesh.quick_compilation()) == times


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
  """From step 8 on; the checkpoint of step 6 is the last good one."""
  make = build.make_augmentation

  def broken(config, info):
    augmentation = make(config, info)

    def augment(key, batch):
      image, targets = augmentation(key, batch)
      wrong = jax.numpy.where(batch['label'][0] >= 0, jax.numpy.nan, 1)
      return image, targets * wrong

    return augment

  _train(tmp_path / 'run', stop_after_epochs=1)
  monkeypatch.setattr(build, 'make_augmentation', broken)
  with pytest.raises(UserError) as caught:
    _train(tmp_path / 'run')
  message = str(caught.value)
  assert 'not finite at step 7 (seen when reading steps 7 to 10)' in message
  assert 'last good checkpoint: that of step 6' in message
