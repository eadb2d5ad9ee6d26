"""Tests that a run sees the same batches wherever its records are stored."""

import io
import json
import types

import folder_data
import jax
import numpy as np
import PIL.Image
import pytest
import tiny
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import (
    checks,
    datasets,
    pictures,
    records,
    resizing,
    token_labels,
)
from gswinrmt_jax.deploy import load
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.models import factory
from gswinrmt_jax.runs import plots, run_folder
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import data as data_lib
from gswinrmt_jax.train import run as run_lib
from gswinrmt_jax.train import schedule, train_loop, train_step, trainer
from gswinrmt_jax.weights import load as weights

# 26 records in batches of 4: epochs end at steps 6, 13, 19, 26.
_RECORDS, _BATCH = 26, 4


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('tfds')
  folder_data.write(root, {'train': folder_data.examples(_RECORDS)})
  return root


def _same(batch, other):
  assert batch.keys() == other.keys() == {'image', 'label', 'row'}
  for name, array in batch.items():
    np.testing.assert_array_equal(array, other[name], strict=True)


def _data(records, maps=None, **changes):
  """Returns these records as the training data of a run."""
  config = recipes.digits('rmt_compact')
  config.update_from_flattened_dict(
      {'seed': 3, 'batch_size': _BATCH, **changes}
  )
  return data_lib.Data(
      config,
      info=None,
      train=records,
      val=None,
      maps=maps,
      devices=mesh.Devices(),
      sources={},
  )


def _batches(found, start=0, stop=19):
  """Returns each step's batch as the device sees it."""
  return {
      step: jax.device_get(batch)
      for step, batch in found.train_batches(start, stop)
  }


@pytest.mark.parametrize(('storage', 'repeats'), [('memory', 1), ('disk', 2)])
def test_batches_are_identical_wherever_records_are(root, storage, repeats):
  how = {'image_size': (6, 7)}
  records = datasets.load('own', 'train', str(root), storage=storage, **how)
  changes = {'data.storage': storage, 'data.repeats': repeats, 'batch_size': 6}
  found = _batches(_data(records, **changes), stop=13)
  # The reference decodes the images themselves.
  decoded = datasets.load('own', 'train', str(root), storage='decode', **how)
  order = batches_lib.train_batches(
      decoded, batch_size=6, seed=3, repeats=repeats
  )
  assert list(found) == list(range(1, 14))
  for batch in found.values():
    _same(batch, next(order))


@pytest.mark.parametrize('start', [3, 5, 12, 18])
def test_from_a_step_on_batches_are_those_of_the_unbroken_run(start):
  records = tiny.arrays(0, _RECORDS)
  unbroken = _batches(_data(records))
  resumed = _batches(_data(records), start)
  assert list(resumed) == list(range(start + 1, 20))
  for step, batch in resumed.items():
    _same(batch, unbroken[step])


def test_maps_go_with_their_records():
  index = np.arange(_RECORDS, dtype=np.uint16)[:, None, None, None]
  score = np.ones((_RECORDS, 1, 1, 1), np.float16)
  maps = token_labels.TokenLabels(index, score, '')
  for batch in _batches(_data(tiny.arrays(0, _RECORDS), maps)).values():
    np.testing.assert_array_equal(batch['map_index'].ravel(), batch['row'])
    assert batch['map_score'].shape == (_BATCH, 1, 1, 1)


def test_slices_that_overlap_are_a_line(root):
  splits = {
      name: datasets.open_source('own', split, str(root))
      for name, split in (('train', 'train[:20]'), ('val', 'train[15:]'))
  }
  (line,) = checks.overlaps(splits)
  assert line == 'warning: 5 records of val are also in train'
  splits['val'] = datasets.open_source('own', 'train[19:]', str(root))
  (line,) = checks.overlaps(splits)
  assert line == 'warning: 1 record of val is also in train'
  splits['val'] = datasets.open_source('own', 'train[20:]', str(root))
  assert not list(checks.overlaps(splits))


def _recipe(root, **changes):
  config = recipes.digits('rmt_compact')
  config.update_from_flattened_dict(
      {
          'batch_size': 4,
          'num_epochs': 1,
          'eval_batch_size': 3,
          'optimizer.warmup_epochs': 0.0,
          'data.name': 'own',
          'data.dir': str(root),
          'data.train_split': 'train',
          'data.val_split': 'val',
          'data.image_size': 8,
          'data.eval_crop': 0.8,
          **changes,
      }
  )
  return config


_RANDOM = {'data.train_crop': 'random_resized', 'data.storage': 'decode'}


def test_training_squeezes_and_evaluation_crops(own_root):
  config = _recipe(own_root)
  train = data_lib.load_train(config)
  val = data_lib.load_eval(config, 'train')
  assert train.image_shape == val.image_shape == (8, 8, 3)
  source = datasets.load('own', 'train', str(own_root), image_size=(8, 8))
  np.testing.assert_array_equal(train.image, source.image)
  assert (train.image != val.image).any()


def test_random_crops_are_of_the_training_records_alone(own_root):
  config = _recipe(own_root, **_RANDOM, **{'data.crop_scale': (0.5, 0.6)})
  train = data_lib.load_train(config)
  assert train.training == resizing.RandomCrop((0.5, 0.6), (0.75, 4 / 3))
  assert train.image_shape == (8, 8, 3) and len(train) == 12
  record = train.read(0, np.random.default_rng(0))
  assert {'image', 'label', 'box'} == set(record)
  val = data_lib.load_eval(config, 'val')
  assert set(val.read(0)) == {'image', 'label'}


@pytest.fixture(scope='module')
def run(own_root, compiled_once, tmp_path_factory):
  """Returns a run of a tiny model on the folder data set."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(factory, 'create_model', lambda *args, **fields: tiny.Tiny())
    patch.setattr(plots, 'draw_curves', tiny_parts.sketch_curves)
    train_loop.train(_recipe(own_root), folder, Terminal(io.StringIO()))
  return folder


@pytest.fixture
def _tiny_model(compiled_once, monkeypatch):
  monkeypatch.setattr(
      factory, 'create_model', lambda *args, **fields: tiny.Tiny()
  )
  monkeypatch.setattr(plots, 'draw_curves', tiny_parts.sketch_curves)


@pytest.mark.usefixtures('_tiny_model')
def test_evaluation_and_prediction_see_what_the_run_saw(
    run, own_root, tmp_path
):
  """The closing summary, `evaluate` and `predict` agree on the test split."""
  summary = json.loads((run / 'summary.json').read_text())['last']
  quiet = Terminal(io.StringIO())
  report = evaluate_run.evaluate_run(run, step='latest', terminal=quiet)
  assert report['accuracy'] == summary['test_accuracy']
  np.testing.assert_allclose(report['loss'], summary['test_loss'], rtol=1e-6)
  assert report['image_size'] == [8, 8] and report['count'] == 7

  loaded = load.load_model(run, step='latest')
  assert loaded.card.class_names == folder_data.CLASSES
  losses = []
  for file_name, encoded, label in folder_data.examples(7, seed=2):
    path = tmp_path / file_name.replace('/', '_')
    path.write_bytes(encoded)
    want = resizing.center_crop(pictures.decode(encoded, ''), (8, 8), 0.8)
    np.testing.assert_array_equal(loaded.pixels(path), want)
    found = loaded.predict(path, 3)
    losses.append(-np.log(found.probabilities[found.labels.index(label)]))
  np.testing.assert_allclose(np.mean(losses), report['loss'], rtol=1e-4)


@pytest.mark.usefixtures('_tiny_model')
def test_above_the_runs_size_no_margin_is_cut_off(run, tmp_path, monkeypatch):
  before, asked = datasets.load, []
  monkeypatch.setattr(
      datasets,
      'load',
      lambda *args, **how: asked.append(how) or before(*args, **how),
  )
  quiet = Terminal(io.StringIO())
  larger = evaluate_run.evaluate_run(run, image_size=12, terminal=quiet)
  assert larger['image_size'] == [12, 12] and larger['count'] == 7
  assert asked[0]['image_size'] == (12, 12) and asked[0]['eval_crop'] == 1.0

  path = tmp_path / 'a.jpg'
  path.write_bytes(folder_data.encoded(5, (40, 30)))
  loaded = load.load_model(run, image_size=12)
  want = resizing.center_crop(pictures.read(path), (12, 12), 1.0)
  np.testing.assert_array_equal(loaded.pixels(path), want)


@pytest.mark.usefixtures('_tiny_model')
def test_a_run_folder_stands_without_its_data(run, own_root, monkeypatch):
  monkeypatch.setattr(datasets, 'info', lambda *args: 1 / 0)
  card = weights.load(run).card
  assert card.class_names == folder_data.CLASSES
  assert card.image_size == (8, 8) and card.crop == 0.8


@pytest.fixture(scope='module')
def own_root(tmp_path_factory):
  root = tmp_path_factory.mktemp('own')
  splits = {
      split: folder_data.examples(count, seed)
      for seed, (split, count) in enumerate(
          {'train': 12, 'val': 5, 'test': 7}.items()
      )
  }
  folder_data.write(root, splits)
  return root


def test_splits_of_different_sizes_are_one_line():
  small, large = tiny.arrays(0, 2), records.Arrays(np.zeros((3, 9, 8, 3)), None)
  config = _recipe('x', **{'data.test_split': ''})
  data_lib._check_data(config, small, small, {})
  said = 'train has images of 7 x 6 pixels, val of 8 x 9: set config'
  with pytest.raises(UserError, match=said):
    data_lib._check_data(config, small, large, {})


def test_a_test_split_of_another_size_is_told_before_training(tmp_path):
  """Not after the last epoch, and not evaluated at its own size."""
  for split, side in (('train', 9), ('val', 9), ('test', 8)):
    for name in ('ant', 'bee'):
      folder = tmp_path / 'own' / split / name
      folder.mkdir(parents=True)
      for row in range(3):
        size = (9, 9) if split == 'test' and row < 2 else (side, side)
        color = (row, ord(name[0]), ord(split[1]))
        PIL.Image.new('RGB', size, color).save(folder / f'{row}.png')
  recipe = _recipe(str(tmp_path), **{'data.test_split': 'test'})
  recipe.data.name = str(tmp_path / 'own')
  recipe.data.image_size, recipe.data.eval_crop = 0, 0.0
  said = 'train has images of 9 x 9 pixels, test of 8 x 8: set config.data'
  with pytest.raises(UserError, match=said):
    train_loop.train(recipe, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_test_split_without_labels_is_told_before_training(tmp_path):
  parts = {
      name: folder_data.examples(4, seed=len(name))
      for name in ('train', 'val', 'test')
  }
  parts['test'] = [(name, image, -1) for name, image, _ in parts['test']]
  folder_data.write(tmp_path, parts)
  recipe = _recipe(tmp_path, **{'data.test_split': 'auto'})
  said = r'config\.data\.test_split: .* has an invalid label, -1'
  with pytest.raises(UserError, match=said):
    train_loop.train(recipe, tmp_path / 'run')


@pytest.mark.usefixtures('_tiny_model')
def test_data_without_a_test_split_train_and_evaluate_on_val(tmp_path):
  """The recipe need not say so, and `evaluate` says which split it takes."""
  parts = {'train': folder_data.examples(12), 'val': folder_data.examples(5, 1)}
  folder_data.write(tmp_path / 'data', parts)
  config = _recipe(str(tmp_path / 'data'))
  run = tmp_path / 'run'
  summary = train_loop.train(config, run, Terminal(io.StringIO()))
  assert 'test_accuracy' not in summary['last']

  def evaluate(**how):
    terminal = Terminal(stream := io.StringIO())
    report = evaluate_run.evaluate_run(
        run, step='latest', terminal=terminal, **how
    )
    return report, stream.getvalue()

  report, said = evaluate()
  assert 'own has no test split: evaluating on val instead' in said
  assert report['split'] == 'val' and report['count'] == 5
  assert report['accuracy'] == summary['last']['val_accuracy']
  assert list(run.glob('evaluation_val_*.json'))
  # Other data may call it 'validation'.
  parts['validation'] = parts.pop('val')
  folder_data.write(tmp_path / 'other', parts)
  report, _ = evaluate(data_dir=str(tmp_path / 'other'))
  assert report['split'] == 'validation' and report['count'] == 5
  # The recipe may say so.
  config = run_folder.load_config(run)
  with config.unlocked():
    config.data.test_split = 'val'
  run_folder.write_config(run, config)
  _, said = evaluate()
  first, *_ = said.splitlines()
  assert first == "the run has no test split: its test and val are 'val'"


@pytest.mark.parametrize('split', ['val_split', 'test_split'])
def test_a_split_that_is_not_there_is_told_first(split, own_root, monkeypatch):
  """Before images are decoded, which may take long."""
  monkeypatch.setattr(data_lib, 'load_train', None)
  recipe = _recipe(str(own_root), **{f'data.{split}': 'tset'})
  with pytest.raises(UserError, match=rf"{split}: own has no split 'tset'"):
    train_loop.train(recipe, own_root / 'run')
  assert not (own_root / 'run').exists()


def test_a_batch_of_one_image_for_maps_of_one_value_is_refused(tmp_path):
  """The digits have 32 x 32 pixels, and the last map one value."""
  config = recipes.digits('rmt_compact')
  config.batch_size = 1
  with pytest.raises(UserError, match='batch_size is 1: it must be at least 2'):
    with tiny_parts.open_run(config, tmp_path / 'run'):
      pass
  model = recipes.make_model(config, 10, (32, 32, 3))
  run_lib._check_batch(config, model, (64, 64, 3))
  for changes in ({'freeze_statistics': True}, {'freeze': 'backbone'}):
    config.optimizer.update(freeze='', freeze_statistics=False)
    config.optimizer.update(changes)
    run_lib._check_batch(config, model, (32, 32, 3))
  config.segmenter.head = 'uper'
  with pytest.raises(UserError, match='a BatchNorm that would see'):
    run_lib._check_batch(config, model, (64, 64, 3))
  # BatchNorms see one part of the batch at a time.
  config.batch_size, config.accumulate_steps = 16, 8
  run_lib._check_batch(config, model, (64, 64, 3))
  config.accumulate_steps = 16
  with pytest.raises(UserError, match=r'batch_size / .*accumulate_steps is 1:'):
    run_lib._check_batch(config, model, (64, 64, 3))


@pytest.mark.parametrize('name', ['flip', 'flip_vertical'])
@pytest.mark.parametrize('task', ['segmentation', 'detection'])
def test_flips_of_dense_data_are_those_of_the_recipe(task, name, monkeypatch):
  head = {'segmentation': 'fpn', 'detection': 'retina'}[task]
  config = getattr(recipes, task)('rmt_compact', head)
  monkeypatch.setattr(datasets, 'load', lambda *_, training, **how: training)
  for wanted in (False, True):
    config.augment[name] = wanted
    assert getattr(data_lib.load_train(config), name) is wanted


def test_only_a_classifier_needs_pairs(monkeypatch):
  """Neither data nor train step pair the images of other tasks."""
  asked = []

  def stop(*_, pairs, **how):
    asked.append(pairs)
    raise RuntimeError('asked')

  monkeypatch.setattr(mesh.Devices, 'check_batch_size', stop)
  monkeypatch.setattr(train_step, 'make_train_step', stop)
  for config in (
      recipes.defaults('rmt_compact'),
      recipes.segmentation('rmt_compact', 'fpn'),
      recipes.detection('rmt_compact', 'retina'),
  ):
    with pytest.raises(RuntimeError, match='asked'):
      data_lib.open_data(config, Terminal(io.StringIO()))
    config = recipes.resolve(config)
    steps = schedule.from_config(config, 1000)
    info = datasets.info('digits')
    with pytest.raises(RuntimeError, match='asked'):
      trainer.build(
          config, None, types.SimpleNamespace(devices=None, info=info), steps
      )
  assert asked == [True, True, False, False, False, False]
