"""Tests that training mode reaches every layer that has one, by tracing."""

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import pytest

import gswinrmt_jax
from gswinrmt_jax.models import factory, layers
from gswinrmt_jax.models.dense.detector import create_detector
from gswinrmt_jax.models.dense.segmenter import create_segmenter
from gswinrmt_jax.ops.assignment import Truth

_SMALL = {
    'num_classes': 3,
    'widths': (4, 4, 8, 8),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 1, 1),
    'drop_path_rate': 0.5,
}
_TRUTH = Truth(
    jnp.array([[[5.0, 6, 30, 40]]] * 2),
    jnp.zeros((2, 1), jnp.int32),
    jnp.ones((2, 1), bool),
    jnp.ones((2, 1, 12, 12), jnp.uint8),
)
_CASES = {
    'token labels': (
        gswinrmt_jax.create_model(
            'rmt_t', **_SMALL, head='proj', dense_head=True
        ),
        {'method': 'class_and_dense_logits'},
    ),
    'fpn': (
        create_segmenter('rmt_t', head='fpn', channels=8, **_SMALL),
        {},
    ),
    'uper': (
        create_segmenter(
            'rmt_t', head='uper', channels=8, auxiliary_channels=8, **_SMALL
        ),
        {'method': 'logits_and_auxiliary'},
    ),
    'retina': (
        create_detector('rmt_t', head='retina', channels=8, **_SMALL),
        {'truth': _TRUTH},
    ),
    'cascade': (
        create_detector(
            'rmt_t',
            head='cascade',
            channels=8,
            linear_channels=8,
            train_proposals=8,
            roi_samples=8,
            **_SMALL,
        ),
        {'truth': _TRUTH},
    ),
}


def _in_training(model, train, how):
  """Returns the paths of layers that are traced in training mode.

  These are the BatchNorms that use the batch's statistics, and the dropouts,
  also of stochastic depth, that drop something.
  """
  norms, dropouts = set(), set()

  def note(call, args, kwargs, context):
    module = context.module
    if isinstance(module, layers.BatchNorm) and kwargs.get('train'):
      norms.add(module.path)
    if isinstance(module, nn.Dropout) and not kwargs.get('deterministic'):
      dropouts.update([module.path] if module.rate else [])
    return call(*args, **kwargs)

  def run(variables, key):
    return model.apply(
        variables,
        jnp.zeros((2, 64, 64, 3)),
        train=train,
        rngs={'dropout': key, 'sampling': key},
        mutable=['batch_stats'],
        **how,
    )

  with nn.intercept_methods(note):
    shapes = factory.variable_shapes(model, (64, 64, 3))
    norms.clear()
    dropouts.clear()
    jax.eval_shape(run, shapes, jax.random.key(0))
  return norms, dropouts


@pytest.mark.parametrize('case', _CASES)
def test_training_mode_reaches_every_layer(case):
  model, how = _CASES[case]
  norms, dropouts = _in_training(model, True, how)
  shapes = factory.variable_shapes(model, (64, 64, 3))['batch_stats']
  flat = traverse_util.flatten_dict(shapes)
  assert norms == {path[:-1] for path in flat} and norms
  # Stochastic depth in all stages but the first, whose rate is 0.
  dropped = {path[:-2] for path in dropouts if path[-1].startswith('Drop')}
  assert len(dropped) >= 3
  heads = {path[0] for path in dropouts if 'classifier' in path}
  expected = {'fpn': {'decode_head'}, 'uper': {'decode_head', 'auxiliary_head'}}
  assert heads == expected.get(case, set())
  # Nor does evaluation leave one in training mode.
  assert _in_training(model, False, how) == (set(), set())
