"""Tests that the timed programs are those of training, on random data."""

import functools

import jax
import jax.numpy as jnp
import jax_programs as programs
import numpy as np
import synthetic_images

from gswinrmt_jax.data import datasets
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
  batch = programs.random_batch(3, 8, 4)
  assert np.abs(batch['image']).min() > 0
  np.testing.assert_allclose(batch['target'].sum(-1), 1, rtol=1e-6)
  assert (batch['target'].argmax(-1) == batch['label']).all()
  np.testing.assert_allclose(batch['target'].max(-1), 0.925, rtol=1e-6)
  model = factory.create_model('retention_compact', num_classes=5, **SMALL)
  values = programs.random_variables(model, (32, 32, 3))
  for leaf in jax.tree.leaves(values):
    assert leaf.dtype == np.float32 and np.abs(leaf).min() > 0
    assert leaf.size == 1 or leaf.std() > 0
  logits = jax.jit(lambda v, x: model.apply(v, x, train=False))(
      values, jnp.asarray(programs.random_batch(2, 32, 5)['image'])
  )
  assert 0.01 < float(jnp.abs(logits).mean()) < 100


def test_synthetic_images_are_a_data_set_of_so_many_classes(tmp_path):
  synthetic_images.make(tmp_path, 7, classes=3, size=(50, 40))
  assert [path.name for path in tmp_path.iterdir()] == [synthetic_images.NAME]
  info = datasets.info(synthetic_images.NAME, str(tmp_path))
  assert len(info.class_names) == 3
  found = datasets.load(synthetic_images.NAME, 'train', str(tmp_path))
  assert found.image.shape == (7, 40, 50, 3)
  assert sorted(found.label) == [0, 0, 0, 1, 1, 2, 2]
  # Each image is different noise.
  assert found.image.std((1, 2, 3)).min() > 30
  assert len(np.unique(found.image.reshape(7, -1), axis=0)) == 7
