"""The programs that are timed are those of training, on data that is random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.benchmark import ideal_bytes, jax_arms, variables
from gswinrmt_jax.models import cost, factory
from gswinrmt_jax.ops import backend

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
  program = jax_arms.build({**SPEC, 'task': 'train'})
  program.run(2)
  model = factory.create_model('retention_compact', num_classes=5, **SMALL)
  counted = cost.count(model, (32, 32))
  assert program.facts['dtype'] == 'float32'
  assert program.facts['parameters'] == counted.parameters
  # Forward and twice that backward; two operations; two images.
  products = sum(
      counted.operations[kind]
      for kind in ('convolution', 'linear', 'attention')
  )
  assert program.facts['flops'] == products * 3 * 2 * 2
  least = ideal_bytes.ideal(model, 2, 32, activation=4)
  assert program.facts['ideal_bytes'] == least.total
  first = float(program.run.metrics['loss'])
  program.run(3)
  assert int(program.run.state.step) == 5
  assert float(program.run.metrics['loss']) != first


def test_latency_is_inference():
  program = jax_arms.build({**SPEC, 'task': 'latency', 'batch': 1})
  program.run(1)
  assert program.facts['images'] == 1
  assert program.facts['flops'] == 2 * program.facts['macs']


def test_plain_takes_none_of_our_forms():
  """Traced as if there were no CPU: grouped convolutions, no products."""
  texts = {}
  for plain in (False, True):
    spec = {**SPEC, 'dtype': 'float32', 'task': 'inference', 'plain': plain}
    model, values, batch = jax_arms._model(spec)
    with backend.tracing_for('gpu' if plain else 'cpu'):
      texts[plain] = str(
          jax.make_jaxpr(lambda v, x, m=model: m.apply(v, x, train=False))(
              values, batch['image']
          )
      )
  assert 'feature_group_count=8' in texts[True]
  assert 'feature_group_count=8' not in texts[False]
  # The stem's four, and three in the block.
  assert texts[True].count('conv_general_dilated[') == 4 + 3


def test_depthwise_and_ceilings_run(monkeypatch):
  monkeypatch.setattr(jax_arms, '_MATMUL_SIDE', {'cpu': 16})
  monkeypatch.setattr(jax_arms, '_COPIED', {'cpu': 32})
  spec = {'task': 'depthwise', 'shape': (2, 4, 4, 3), 'kernel': 3}
  for impl in ('shift', 'conv'):
    jax_arms.build({**spec, 'impl': impl}).run(1)
  assert jax_arms.build({'task': 'matmul'}).facts['flops'] == 2 * 16**3
  assert jax_arms.build({'task': 'copy'}).facts['bytes'] == 2 * 4 * 32


def test_nothing_is_zero_and_targets_are_smoothed():
  batch = variables.random_batch(3, 8, 4)
  assert np.abs(batch['image']).min() > 0
  np.testing.assert_allclose(batch['target'].sum(-1), 1, rtol=1e-6)
  assert (batch['target'].argmax(-1) == batch['label']).all()
  np.testing.assert_allclose(batch['target'].max(-1), 0.925, rtol=1e-6)
  model = factory.create_model('retention_compact', num_classes=5, **SMALL)
  values = variables.random_variables(model, (32, 32, 3))
  for leaf in jax.tree.leaves(values):
    assert leaf.dtype == np.float32 and np.abs(leaf).min() > 0
    assert leaf.size == 1 or leaf.std() > 0
  logits = jax.jit(lambda v, x: model.apply(v, x, train=False))(
      values, jnp.asarray(variables.random_batch(2, 32, 5)['image'])
  )
  assert 0.01 < float(jnp.abs(logits).mean()) < 100


def test_an_unknown_task_is_told():
  with pytest.raises(KeyError):
    jax_arms.build({'task': 'sing'})
