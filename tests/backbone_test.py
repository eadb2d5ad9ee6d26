"""The whole model: maps, stochastic depth, resolutions, gradients."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
import random_variables

import gswinrmt_jax
from gswinrmt_jax.models import architecture, backbone, factory

_TINY = {
    'widths': (8, 16, 24, 32),
    'depths': (2, 1, 2, 1),
    'num_heads': (1, 2, 3, 4),
    'window_size': 3,
}
NAMES = ('rmt_compact', 'retention_compact', 'swat_compact')


def _tiny(name, **overrides):
  fields = _TINY | overrides
  if name.startswith('rmt'):
    fields['window_size'] = 0
  return gswinrmt_jax.create_model(
      name, num_classes=5, **{'dtype': 'float32'} | fields
  )


def _shapes(model, size, **options):
  x = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
  variables = factory.variable_shapes(model, x.shape[1:])
  return jax.eval_shape(
      functools.partial(model.apply, train=False, **options), variables, x
  )


@pytest.mark.parametrize(
    ('name', 'size'),
    [
        ('rmt_t', (32, 32)),
        ('retention_large', (75, 106)),
        ('swat_large', (224, 320)),
    ],
)
def test_features_have_the_strides_and_widths(name, size):
  """Full-size models, by shape alone; extents round up."""
  model = gswinrmt_jax.create_model(name, num_classes=11, dtype='bfloat16')
  maps = _shapes(model, size, method='features')
  extents = size
  for _ in range(2):
    extents = tuple(-(-e // 2) for e in extents)
  for stage, width in enumerate(model.arch.widths, start=1):
    feature = maps[f'stage{stage}']
    assert feature.shape == (2, *extents, width)
    assert feature.dtype == jnp.bfloat16
    extents = tuple(-(-e // 2) for e in extents)
  logits = _shapes(model, size)
  assert (logits.shape, logits.dtype) == ((2, 11), jnp.float32)


@pytest.mark.parametrize(
    ('name', 'strides'),
    [('rmt_deit_s', (16,)), ('rmt_swin_t', (4, 8, 16, 32))],
)
def test_features_of_the_plain_skeletons(name, strides):
  """One map for each stage; extents round up."""
  model = gswinrmt_jax.create_model(name, num_classes=11, dtype='bfloat16')
  maps = _shapes(model, (75, 106), method='features')
  assert len(maps) == len(strides)
  for stage, stride in enumerate(strides, start=1):
    feature = maps[f'stage{stage}']
    extents = -(-75 // stride), -(-106 // stride)
    assert feature.shape == (2, *extents, model.arch.widths[stage - 1])
    assert feature.dtype == jnp.bfloat16


def test_the_number_of_stages_follows_the_widths():
  fields = {'depths': (1, 1, 1), 'num_heads': (1, 2, 3), 'widths': (8, 16, 24)}
  model = _tiny(
      'retention_compact',
      **fields,
      mlp_ratios=(4.0, 3.0, 2.0),
      layer_scale=(0.1, 0.1, 0.1),
      decay_ranges=(4.0, 5.0, 6.0),
  )
  maps = _shapes(model, (16, 24), method='features')
  assert {k: v.shape for k, v in maps.items()} == {
      'stage1': (2, 4, 6, 8),
      'stage2': (2, 2, 3, 16),
      'stage3': (2, 1, 2, 24),
  }


@pytest.mark.parametrize(
    ('name', 'shape', 'message'),
    [
        ('retention_compact', (31, 64, 3), 'at least 32x32 .* not 31x64'),
        ('retention_compact', (32, 32, 1), 'with 1'),
        ('rmt_swin_t', (64, 31, 3), 'at least 32x32 .* not 64x31'),
        ('rmt_deit_s', (15, 16, 3), 'at least 16x16 .* not 15x16'),
    ],
)
def test_images_that_do_not_fit_are_refused(name, shape, message):
  model = gswinrmt_jax.create_model(name, num_classes=5)
  x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(
        functools.partial(model.init, train=False), jax.random.key(0), x
    )


@pytest.mark.parametrize('name', NAMES)
def test_the_same_weights_run_at_another_resolution(name):
  model = _tiny(name, depths=(1, 1, 1, 1))
  variables = random_variables.nested(model, (1, 32, 32, 3))
  x = random_variables.image((1, 48, 35, 3))
  logits = jax.jit(lambda v, x: model.apply(v, x, train=False))(variables, x)
  assert np.isfinite(logits).all()


def test_the_head_pools_what_features_returns():
  model = _tiny('retention_compact', depths=(1, 1, 1, 1))
  x = random_variables.image((2, 64, 64, 3))
  variables = random_variables.nested(model, x.shape)

  @jax.jit
  def run(variables, x):
    maps = model.apply(variables, x, train=False, method='features')
    return maps['stage4'], model.apply(variables, x, train=False)

  last, logits = run(variables, x)
  centred = last - last.mean(-1, keepdims=True)
  p = variables['params']
  normed = centred / np.sqrt(last.var(-1, keepdims=True) + 1e-6)
  normed = normed * p['norm']['scale'][None, None, None]
  pooled = (normed + p['norm']['bias'][None, None, None]).mean((1, 2))
  expected = pooled @ p['head']['kernel'] + p['head']['bias'][None]
  np.testing.assert_allclose(logits, expected, atol=2e-5)


def test_stochastic_depth_rates_and_scale():
  """p_max i / (L - 1): of 6 blocks, 0, .1, .2, .3, .4, .5; kept over 1 - p."""
  model = _tiny('retention_compact', drop_path_rate=0.5).bind(
      {}, rngs={'dropout': jax.random.key(0)}
  )
  keep = np.asarray(model._draw_keep(20_000))
  rates = np.arange(6) / 10
  assert keep.shape == (6, 2, 20_000)
  np.testing.assert_allclose(
      (keep == 0).mean(-1), np.stack([rates, rates], 1), atol=0.015
  )
  for index, rate in enumerate(rates):
    np.testing.assert_allclose(np.unique(keep[index])[-1], 1 / (1 - rate), 1e-6)
  # The branches of a block, and the samples, are dropped independently.
  assert abs(np.corrcoef(keep[5])[0, 1]) < 0.03


def test_no_rate_takes_no_key():
  model = _tiny('retention_compact', drop_path_rate=0.0, depths=(1, 1, 1, 1))
  x = random_variables.image((2, 32, 32, 3))
  variables = random_variables.nested(model, x.shape)
  # Raises if a key were asked for.
  jax.eval_shape(
      lambda v, x: model.apply(v, x, train=True, mutable=['batch_stats']),
      variables,
      x,
  )


def test_every_parameter_of_a_plain_skeleton_has_a_gradient():
  """With RetNet's form, decomposed in stage 1 and over all pairs in stage 2."""
  model = _tiny(
      'rmt_swin_t',
      widths=(8, 16),
      depths=(1, 1),
      num_heads=(1, 2),
      mlp_ratios=(4.0, 4.0),
      layer_scale=(0.0, 0.0),
      decay_ranges=(4.0, 6.0),
      full_stages=(2,),
      score_fn='linear',
      head_norm=True,
      gate=True,
      gate_fn='swish',
  )
  x = random_variables.image((2, 18, 21, 3))
  variables = random_variables.nested(model, x.shape)
  grads = jax.jit(
      jax.grad(lambda v: jnp.sin(model.apply(v, x, train=False)).sum())
  )(variables)
  for path, grad in jax.tree.leaves_with_path(grads):
    assert np.isfinite(grad).all() and np.abs(grad).max() > 1e-7, path


@pytest.mark.parametrize('impl', ['shift', 'conv'])
def test_forward_over_reverse(impl):
  """A Hessian times a vector; lowering is where derivatives are missed."""
  x = random_variables.image((1, 32, 32, 3))
  model = _tiny('retention_compact', depthwise_impl=impl)
  variables = random_variables.nested(model, x.shape)
  gradient = jax.grad(lambda x: model.apply(variables, x, train=False).sum())
  product = jax.jit(lambda x: jax.jvp(gradient, (x,), (x,))[1]).lower(x)
  assert product.out_info.shape == x.shape


def test_bfloat16_keeps_parameters_statistics_and_logits_in_float32():
  model = _tiny('swat_compact', dtype='bfloat16')
  x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
  variables = jax.eval_shape(
      functools.partial(model.init, train=False), jax.random.key(0), x
  )
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {
      jnp.dtype('float32')
  }
  logits, updates = jax.eval_shape(
      lambda v, x: model.apply(
          v,
          x,
          train=True,
          mutable=['batch_stats'],
          rngs={'dropout': jax.random.key(0)},
      ),
      variables,
      x,
  )
  assert logits.dtype == jnp.float32
  assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {
      jnp.dtype('float32')
  }


def test_a_backbone_without_a_head_has_normalised_features():
  """Beside the path: the next stage reads the map as it was."""
  fields = {
      'widths': (8, 8, 16, 16),
      'depths': (1, 1, 1, 1),
      'num_heads': (1, 1, 2, 2),
  }
  shape = (2, 40, 56, 3)
  model = gswinrmt_jax.create_model(
      'rmt_t', num_classes=0, feature_norm=True, **fields
  )
  plain = gswinrmt_jax.create_model('rmt_t', num_classes=0, **fields)
  variables = random_variables.nested(model, shape)
  image = random_variables.image(shape)

  @jax.jit
  def run(variables):
    return (
        model.apply(variables, image, train=False),
        model.apply(variables, image, train=False, method='features'),
        plain.apply(variables, image, train=False, method='features'),
    )

  out, normalised, raw = run(variables)
  for stage in range(1, 5):
    x = np.asarray(raw[f'stage{stage}'], np.float64)
    affine = variables['params'][f'feature_norm{stage}']
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = (x - x.mean(-1, keepdims=True)) / deviation
    x = x * np.asarray(affine['scale']) + np.asarray(affine['bias'])
    np.testing.assert_allclose(normalised[f'stage{stage}'], x, atol=1e-5)
  np.testing.assert_allclose(out, x.mean((1, 2)), atol=1e-5)


def test_blocks_of_a_stage_share_their_programs():
  """Forward and backward: more blocks are more calls, and nothing else."""
  found = {}
  for depth in (1, 3):
    arch = architecture.Architecture(
        widths=(8,) * 4, num_heads=(2,) * 4, depths=(depth,) * 4, shift=False
    )
    stage = backbone.Stage(arch, 0, jnp.float32)
    x = jnp.ones((2, 6, 6, 8))
    variables = jax.eval_shape(stage.init, jax.random.key(0), x, None)

    def loss(variables, x, stage=stage):
      return stage.apply(variables, x, None).sum()

    # By which flax would trace what makes each parameter.
    with mock.patch.object(jax, 'eval_shape', side_effect=AssertionError):
      program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(variables, x)
    found[depth] = programs.shared(program.jaxpr)
  assert found[3] == {
      name: (kept, 3 * calls) for name, (kept, calls) in found[1].items()
  }
  equations = 'depthwise_conv normalize layer_norm dense_parts retention'
  equations += ' residual_dense dense_gelu ahead_of behind'
  assert {*equations.split()} <= {*found[1]}
