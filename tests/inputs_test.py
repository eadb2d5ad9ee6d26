"""From a recipe to records."""

import io
import json

import folder_data
import numpy as np
import pytest
import tiny
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets, pictures, records
from gswinrmt_jax.deploy import predict
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.models import factory
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import inputs, train_loop
from gswinrmt_jax.weights import load as weights


@pytest.fixture(scope='module', autouse=True)
def _compiled_once(tmp_path_factory):
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('tfds')
  splits = {
      split: folder_data.examples(count, seed)
      for seed, (split, count) in enumerate(
          {'train': 12, 'val': 5, 'test': 7}.items()
      )
  }
  folder_data.write(root, splits)
  return root


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
          'data.image_size': 8,
          'data.eval_crop': 0.8,
          **changes,
      }
  )
  return config


_RANDOM = {'data.train_crop': 'random_resized', 'data.storage': 'decode'}


@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        ({'data.storage': 'ram'}, "storage is 'ram': must be one of memory,"),
        ({'data.image_size': -1}, 'image_size is -1: must be at least 0'),
        ({'data.workers': -1}, 'workers is -1: must be at least 0'),
        ({'data.eval_crop': 1.5}, 'eval_crop is 1.5: must be 0, or from 0'),
        ({'data.eval_crop': 0.09}, 'is 0.09: must be 0, or from 0.1 to 1'),
        ({'data.eval_crop': float('nan')}, 'eval_crop is nan: must be'),
        ({'data.eval_crop': -0.1}, 'eval_crop is -0.1: must be'),
        ({'data.image_size': 0}, 'eval_crop needs config.data.image_size'),
        ({'data.train_crop': 'centre'}, 'must be resize or random_resized'),
        ({'data.repeats': 0}, 'repeats is 0: must be from 1 to a third'),
        ({'data.repeats': 2}, r'to a third of config\.batch_size, 4'),
        (
            _RANDOM | {'data.storage': 'disk'},
            'random_resized needs config.data',
        ),
        (
            _RANDOM | {'data.image_size': 0, 'data.eval_crop': 0.0},
            'random_resized needs config.data',
        ),
        (
            _RANDOM | {'data.crop_scale': (0.5, 1.5)},
            r'crop_scale is \(0.5, 1.5',
        ),
        (_RANDOM | {'data.crop_scale': (0.0, 1.0)}, 'two numbers above 0'),
        (_RANDOM | {'data.crop_ratio': (2.0, 1.0)}, 'not above the second$'),
        (_RANDOM | {'data.crop_ratio': (1.0,)}, 'must be two numbers'),
    ],
)
def test_fields_that_cannot_be_are_one_line(changes, said):
  inputs.check(_recipe('x'))
  with pytest.raises(UserError, match=said):
    inputs.check(_recipe('x', **changes))


def test_training_squeezes_and_evaluation_crops(root):
  config = _recipe(root)
  train = inputs.load_train(config)
  val = inputs.load_eval(config, 'train')
  assert train.image_shape == val.image_shape == (8, 8, 3)
  source = datasets.load('own', 'train', str(root), image_size=(8, 8))
  np.testing.assert_array_equal(train.image, source.image)
  assert (train.image != val.image).any()


def test_random_crops_are_of_the_training_records_alone(root):
  config = _recipe(root, **_RANDOM, **{'data.crop_scale': (0.5, 0.6)})
  inputs.check(config)
  train = inputs.load_train(config)
  assert train.how == pictures.RandomCrop((0.5, 0.6), (0.75, 4 / 3))
  assert train.image_shape == (8, 8, 3) and len(train) == 12
  batch = train.gather(np.arange(3), 0, np.arange(3))
  assert {'image', 'label', 'box', 'row'} == set(batch)
  val = inputs.load_eval(config, 'val')
  assert set(val.gather([0])) == {'image', 'label'}


@pytest.mark.usefixtures('_tiny_model')
def test_random_crops_are_trained_on_and_resumed(root, tmp_path):
  changes = _RANDOM | {'data.repeats': 2, 'num_epochs': 2, 'batch_size': 6}
  quiet = metrics_log.Terminal(io.StringIO())
  whole = train_loop.train(_recipe(root, **changes), tmp_path / 'whole', quiet)
  for epochs in (1, 0):
    parted = train_loop.train(
        _recipe(root, stop_after_epochs=epochs, **changes),
        tmp_path / 'parted',
        quiet,
    )
  for figure in ('val_accuracy', 'test_loss'):
    assert parted['last'][figure] == whole['last'][figure]


@pytest.fixture(scope='module')
def run(root, tmp_path_factory):
  """A run on the folder data set, with a tiny model in place of a real one."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(factory, 'create_model', lambda *args, **fields: tiny.Tiny())
    train_loop.train(_recipe(root), folder, metrics_log.Terminal(io.StringIO()))
  return folder


@pytest.fixture
def _tiny_model(monkeypatch):
  monkeypatch.setattr(
      factory, 'create_model', lambda *args, **fields: tiny.Tiny()
  )


@pytest.mark.usefixtures('_tiny_model')
def test_evaluation_and_prediction_see_what_the_run_saw(run, root, tmp_path):
  """The closing summary, `evaluate` and `predict` agree on the test split."""
  summary = json.loads((run / 'summary.json').read_text())['last']
  quiet = metrics_log.Terminal(io.StringIO())
  report = evaluate_run.evaluate_run(run, step='latest', terminal=quiet)
  assert report['accuracy'] == summary['test_accuracy']
  np.testing.assert_allclose(report['loss'], summary['test_loss'], rtol=1e-6)
  assert report['image_size'] == [8, 8] and report['count'] == 7

  predictor = predict.Predictor(weights.load(run, step='latest'))
  assert predictor.card.class_names == folder_data.CLASSES
  losses = []
  for file_name, encoded, label in folder_data.examples(7, seed=2):
    path = tmp_path / file_name.replace('/', '_')
    path.write_bytes(encoded)
    image = predictor.read(path)
    want = pictures.fit(pictures.decode(encoded, ''), (8, 8), 0.8)
    np.testing.assert_array_equal(image, want)
    (found,) = predictor.predict([path], [image], 3)
    losses.append(-np.log(found.probabilities[found.labels.index(label)]))
  np.testing.assert_allclose(np.mean(losses), report['loss'], rtol=1e-4)


@pytest.mark.usefixtures('_tiny_model')
def test_above_the_runs_size_no_margin_is_cut_off(run, tmp_path, monkeypatch):
  load, asked = datasets.load, []
  monkeypatch.setattr(
      datasets,
      'load',
      lambda *args, **how: asked.append(how) or load(*args, **how),
  )
  quiet = metrics_log.Terminal(io.StringIO())
  larger = evaluate_run.evaluate_run(run, image_size=12, terminal=quiet)
  assert larger['image_size'] == [12, 12] and larger['count'] == 7
  assert asked[0]['image_size'] == (12, 12) and asked[0]['crop'] == 1.0

  path = tmp_path / 'a.jpg'
  path.write_bytes(folder_data.encoded(5, (40, 30)))
  predictor = predict.Predictor(weights.load(run), image_size=12)
  want = pictures.fit(pictures.read(path), (12, 12), 1.0)
  np.testing.assert_array_equal(predictor.read(path), want)


@pytest.mark.usefixtures('_tiny_model')
def test_a_run_folder_stands_without_its_data(run, root, monkeypatch):
  monkeypatch.setattr(datasets, 'info', lambda *args: 1 / 0)
  card = weights.load(run).card
  assert card.class_names == folder_data.CLASSES
  assert card.image_size == (8, 8) and card.crop == 0.8


def test_splits_of_different_sizes_are_one_line():
  small, large = tiny.arrays(0, 2), records.Arrays(np.zeros((3, 9, 8, 3)), None)
  inputs.check_sizes(_recipe('x'), small, small)
  said = 'train has images of 7 x 6 pixels, val of 8 x 9: set config'
  with pytest.raises(UserError, match=said):
    inputs.check_sizes(_recipe('x'), small, large)


def test_a_test_split_that_is_not_there_is_told_before_training(root):
  """Not after the last epoch."""
  recipe = _recipe(str(root))
  inputs.check_test(recipe)
  recipe.data.test_split = 'tset'
  with pytest.raises(UserError, match=r"test_split: own has no split 'tset'"):
    inputs.check_test(recipe)
  with pytest.raises(UserError, match='test_split'):
    train_loop.train(recipe, root / 'run')
  assert not (root / 'run').exists()


def test_images_as_stored_say_nothing_of_other_shapes():
  assert inputs.crop(recipes.cifar10('rmt_compact')) == 1.0
  assert inputs.crop(_recipe('x')) == 0.8
  assert inputs.crop(_recipe('x', **{'data.eval_crop': 0.0})) == 0.0
