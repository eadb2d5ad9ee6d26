"""Tests that the timed programs are those of training, on random data."""

import dataclasses
import functools
import itertools
import multiprocessing
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.benchmark import pipeline, programs, random_data
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import cost, factory

SMALL = {
    'widths': (8,),
    'depths': (1,),
    'num_heads': (1,),
    'mlp_ratios': (2.0,),
    'layer_scale': (0.01,),
    'decay_ranges': (4.0,),
    'drop_path_rate': 0.5,
}
SPEC = {
    'model': 'retention_compact',
    'fields': SMALL,
    'batch': 2,
    'image_size': 32,
    'classes': 5,
}


def test_the_training_step_learns_what_it_is_timed_on():
  program = programs.build({**SPEC, 'task': 'train'})
  program.run(2)
  model = factory.create_model('retention_compact', num_classes=5, **SMALL)
  counted = cost.count(model, (32, 32))
  assert program.facts['dtype'] == 'float32'
  assert program.facts['parameters'] == counted.parameters
  # Backward costs twice forward; 2 operations per MAC; 2 images.
  products = sum(
      counted.operations[kind]
      for kind in ('convolution', 'linear', 'attention')
  )
  assert program.facts['flops'] == products * 3 * 2 * 2
  first = float(program.run.metrics['loss'])
  program.run(3)
  assert int(program.run.state.step) == 5
  assert float(program.run.metrics['loss']) != first


def test_latency_is_inference():
  program = programs.build({**SPEC, 'task': 'latency', 'batch': 1})
  program.run(1)
  assert program.facts['images'] == 1
  assert program.facts['flops'] == 2 * program.facts['macs']


def test_plain_takes_none_of_our_forms():
  """It uses grouped convolutions, not shifted sums."""
  texts = {}
  for plain in (False, True):
    spec = {**SPEC, 'dtype': 'float32', 'task': 'inference', 'plain': plain}
    model, values, batch = programs._model(spec)
    apply = jax.jit(functools.partial(model.apply, train=False))
    texts[plain] = programs._compiled(
        spec, apply, values, batch['image']
    ).as_text()
  assert 'feature_group_count=8' in texts[True]
  assert 'feature_group_count=8' not in texts[False]


def test_depthwise_and_matmul_run(monkeypatch):
  monkeypatch.setattr(programs, '_MATMUL_SIDE', {'cpu': 16})
  spec = {'task': 'depthwise', 'shape': (2, 4, 4, 3), 'kernel': 3}
  for impl in ('shift', 'conv'):
    programs.build({**spec, 'impl': impl}).run(1)
  assert programs.build({'task': 'matmul'}).facts['flops'] == 2 * 16**3


def test_nothing_is_zero_and_targets_are_smoothed():
  batch = random_data.random_batch(3, 8, 4)
  assert np.abs(batch['image']).min() > 0
  np.testing.assert_allclose(batch['target'].sum(-1), 1, rtol=1e-6)
  assert (batch['target'].argmax(-1) == batch['label']).all()
  np.testing.assert_allclose(batch['target'].max(-1), 0.925, rtol=1e-6)
  model = factory.create_model('retention_compact', num_classes=5, **SMALL)
  values = random_data.random_variables(model, (32, 32, 3))
  for leaf in jax.tree.leaves(values):
    assert leaf.dtype == np.float32 and np.abs(leaf).min() > 0
    assert leaf.size == 1 or leaf.std() > 0
  logits = jax.jit(lambda v, x: model.apply(v, x, train=False))(
      values, jnp.asarray(random_data.random_batch(2, 32, 5)['image'])
  )
  assert 0.01 < float(jnp.abs(logits).mean()) < 100


def test_an_unknown_task_is_refused():
  with pytest.raises(KeyError):
    programs.build({'task': 'sing'})


PIPELINE = {
    'task': 'pipeline',
    'model': 'retention_compact',
    'fields': {},
    'batch': 4,
    'image_size': 32,
    'classes': 3,
    'dtype': 'float32',
    'storage': 'disk',
    'workers': None,
    'dir': '/pictures',
}


class Step:
  """A train step that compiles nothing and records the rows of its batches."""

  def __init__(self):
    self.rows = []

  def lower(self, *args):
    return self

  def compile(self):
    def step(state, batch, key):
      self.rows.append(np.asarray(batch['row']))
      return state, {}

    return step


@pytest.fixture
def tiny_run(tmp_path, monkeypatch):
  tiny_parts.install(monkeypatch)
  config = tiny_parts.recipe()
  with tiny_parts.open_run(config, tmp_path / 'run') as run:
    functions = dataclasses.replace(run.trainer, train_step=Step())
    return run.data, functions


def _rows(data, steps):
  """Returns the rows of the first batches in training order."""
  batches = batches_lib.train_batches(
      data.train, batch_size=4, seed=data.config.seed
  )
  return [batch['row'] for batch in itertools.islice(batches, steps)]


def test_each_step_trains_on_the_next_batch(tiny_run):
  program = programs.fed_training(*tiny_run, repeat=False)
  program.run(2)
  program.ready()  # there are no workers, so nothing is dropped
  program.run(1)
  # The first batch was used to compile.
  data, functions = tiny_run
  np.testing.assert_array_equal(functions.train_step.rows, _rows(data, 4)[1:])


def test_what_workers_prepared_meanwhile_is_dropped(tiny_run):
  """One worker prefetches two batches."""
  data, functions = tiny_run
  feed = types.SimpleNamespace(
      train_batches=data.train_batches,
      config=data.config,
      train=types.SimpleNamespace(workers=1),
  )
  program = programs.fed_training(feed, functions, repeat=False)
  program.ready()
  program.run(1)
  np.testing.assert_array_equal(functions.train_step.rows, _rows(data, 4)[3:])


def test_without_a_pipeline_the_first_batch_comes_again(tiny_run):
  program = programs.fed_training(*tiny_run, repeat=True)
  program.ready()
  program.run(2)
  data, functions = tiny_run
  np.testing.assert_array_equal(functions.train_step.rows, 2 * _rows(data, 1))


def test_the_recipe_is_the_image_size_s():
  small = programs.recipe(PIPELINE)
  large = programs.recipe({**PIPELINE, 'image_size': 224, 'workers': 5})
  assert (small.augment.crop_padding, large.augment.crop_padding) == (4, 0)
  assert (small.data.workers, large.data.workers) == (0, 5)
  for config, size in ((small, 32), (large, 224)):
    assert config.augment.rand_augment_ops == 2
    assert (config.batch_size, config.dtype) == (4, 'float32')
    assert (config.data.image_size, config.data.storage) == (size, 'disk')
    assert config.data.dir == '/pictures'
  assert programs.recipe({**PIPELINE, 'storage': None}).data.storage == 'memory'


@pytest.mark.parametrize(('storage', 'workers'), [('decode', 1), ('device', 0)])
def test_the_whole_program(monkeypatch, tmp_path, storage, workers):
  monkeypatch.setattr(recipes, 'make_model', lambda *args: tiny.Tiny())
  pipeline.make_data(tmp_path, 9, classes=3, size=(32, 32))
  changes = {'storage': storage, 'workers': workers, 'dir': str(tmp_path)}
  program = programs.build({**PIPELINE, **changes})
  assert len(multiprocessing.active_children()) == workers
  assert program.facts['images'] == 4
  for calls in (1, 3):
    program.ready()
    program.run(calls)
  assert int(program.run.state.step) == 4
  program.close()
  assert not multiprocessing.active_children()


MEASURED = {'model': 'm', 'batch': 4, 'image_size': 224, 'classes': 5}


def test_each_storage_is_measured_on_images_of_the_size_needed(monkeypatch):
  made, measured = [], []
  monkeypatch.setattr(
      pipeline, 'make_data', lambda *args, **how: made.append((*args, how))
  )
  bench = types.SimpleNamespace(measure=measured.append)

  def measure(*models):
    storages = ('device', 'decode')
    pipeline.measure(bench, models, storages=storages, images=9, workers=2)

  measure(MEASURED, {**MEASURED, 'image_size': 32})
  for (folder, *_), size, specs in zip(made, (224, 32), measured, strict=True):
    assert not folder.exists()  # nothing is left
    assert list(specs) == ['m, without', 'm, device', 'm, decode']
    found = list(specs.values())
    assert [one['storage'] for one in found] == [None, 'device', 'decode']
    for one in found:
      assert (one['batch'], one['workers'], one['image_size']) == (4, 2, size)
      assert one['dir'] == str(folder)
  assert [(count, how) for _, count, how in made] == [
      (9, {'classes': 5, 'size': (500, 375)}),
      (9, {'classes': 5, 'size': (32, 32)}),
  ]
  with pytest.raises(UserError, match='--images 9: there are 10 classes'):
    measure({**MEASURED, 'classes': 10})


def test_synthetic_images_are_a_data_set_of_so_many_classes(tmp_path):
  pipeline.make_data(tmp_path, 7, classes=3, size=(50, 40))
  assert [path.name for path in tmp_path.iterdir()] == [pipeline.DATA]
  info = datasets.info(pipeline.DATA, str(tmp_path))
  assert len(info.class_names) == 3
  found = datasets.load(pipeline.DATA, 'train', str(tmp_path))
  assert found.image.shape == (7, 40, 50, 3)
  assert sorted(found.label) == [0, 0, 0, 1, 1, 2, 2]
  # Each image is different noise.
  assert found.image.std((1, 2, 3)).min() > 30
  assert len(np.unique(found.image.reshape(7, -1), axis=0)) == 7
