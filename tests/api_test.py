"""Tests the public API: models by name, init against Flax's, and NNX."""

import functools
import pathlib

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gswinrmt_jax
from gswinrmt_jax.models import factory, layers
from gswinrmt_jax.weights import load

_SMALL = {
    'widths': (8,),
    'depths': (1,),
    'num_heads': (2,),
    'mlp_ratios': (2,),
    'decay_ranges': (4,),
    'layer_scale': (1e-2,),
    'drop_path_rate': 0.0,
    'stem': 'patch',
    'head': 'proj',  # has a BatchNorm
    'projection': 12,
}


@pytest.fixture(scope='module')
def model():
  return gswinrmt_jax.create_model('retention_compact', num_classes=3, **_SMALL)


@pytest.fixture(scope='module')
def variables(model):
  return gswinrmt_jax.init(model, jax.random.key(1), (16, 24))


@pytest.fixture(scope='module')
def images():
  return jax.random.normal(jax.random.key(2), (4, 16, 24, 3))


def test_every_public_function_is_visible_and_explained():
  for name in gswinrmt_jax.__all__:
    assert name in dir(gswinrmt_jax)
    text = getattr(gswinrmt_jax, name).__doc__
    assert 'Args:' in text and ('Raises:' in text or name == 'list_models')


def test_init_equals_flaxs_own(model, variables, images):
  """Bit for bit, although Flax runs the whole model to initialise it."""
  want = model.init(jax.random.key(1), images[:1], train=False)
  assert jax.tree.structure(variables) == jax.tree.structure(want)
  jax.tree.map(np.testing.assert_array_equal, variables, want)


def test_variables_are_float32_in_any_mode(model):
  sizes = {'widths': (4, 4, 4, 4), 'depths': (1, 1, 1, 1)}
  sizes |= {'num_heads': (1, 1, 1, 1), 'num_classes': 2}
  models = [model]
  for head in ('fpn', 'uper'):
    models.append(gswinrmt_jax.create_segmenter('rmt_b', head=head, **sizes))
  for head in ('retina', 'mask', 'cascade'):
    models.append(gswinrmt_jax.create_detector('rmt_b', head=head, **sizes))
  for each in models:
    with jax.enable_x64(True):
      shapes = factory.variable_shapes.__wrapped__(each)
    found = {leaf.dtype.name for leaf in jax.tree.leaves(shapes)}
    assert found == {'float32'}, each


def test_init_refuses_images_that_the_model_does_not_take(model):
  with pytest.raises(ValueError, match='image_size=32 must be a height and'):
    gswinrmt_jax.init(model, jax.random.key(0), 32)
  with pytest.raises(ValueError, match='at least 4x4'):
    gswinrmt_jax.init(model, jax.random.key(0), (3, 16))


@pytest.mark.parametrize('shape', [(3,), (64,), (5, 13), (3, 3, 4, 8)])
def test_draws_are_those_of_the_shape(shape):
  key = jax.random.key(3)
  np.testing.assert_array_equal(
      layers.linear_init(key, shape), 0.02 * jax.random.normal(key, shape)
  )
  np.testing.assert_array_equal(
      layers.uniform_fan_in(16)(key, shape),
      jax.random.uniform(key, shape, minval=-0.25, maxval=0.25),
  )


@pytest.mark.parametrize('dtype', [jnp.uint8, jnp.int32])
def test_models_refuse_pixels(model, variables, dtype):
  with pytest.raises(ValueError, match=r'Images are u?int.*pixels / 255'):
    model.apply(variables, jnp.zeros((1, 16, 16, 3), dtype), train=False)


def test_a_changed_model_says_so():
  fields = {
      'widths': (8, 16),
      'depths': (1, 1),
      'num_heads': (1, 2),
      'mlp_ratios': (2, 2),
  }
  assert factory.describe('retention_compact', fields, 19358) == (
      'retention_compact with widths 8 16, depths 1 1, num_heads 1 2, '
      'mlp_ratios 2.0 2.0, 19,358 parameters'
  )
  assert factory.describe('rmt_t', {}, 1000) == 'rmt_t, 1,000 parameters'


def _loss(logits, labels):
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def test_nnx_forward_is_the_same(model, variables, images):
  module = gswinrmt_jax.to_nnx(model, variables)
  image = images[:1]
  want = model.apply(variables, image, train=False)
  np.testing.assert_array_equal(module(image, train=False), want)
  maps = module(image, train=False, method='features')
  assert maps['stage1'].shape == (1, 4, 6, 8)


def test_an_nnx_step_is_ours(model, variables, images):
  labels, tx = jnp.arange(4) % 3, optax.sgd(0.1)

  def loss_of(params):
    logits, updates = model.apply(
        {**variables, 'params': params},
        images,
        train=True,
        mutable=['batch_stats'],
    )
    return _loss(logits, labels), updates['batch_stats']

  grads, stats = jax.jit(jax.grad(loss_of, has_aux=True))(variables['params'])
  updates, _ = tx.update(
      grads, tx.init(variables['params']), variables['params']
  )
  params = optax.apply_updates(variables['params'], updates)

  module = gswinrmt_jax.to_nnx(model, variables)
  optimizer = nnx.Optimizer(module, tx, wrt=nnx.Param)
  loss = nnx.grad(lambda m: _loss(m(images, train=True), labels))
  grads = nnx.jit(loss)(module)
  optimizer.update(module, grads)

  for kind, want in ((nnx.Param, params), (nnx.BatchStat, stats)):
    found = nnx.to_pure_dict(nnx.state(module, kind))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7),
        found,
        want,
    )
  # nnx.bridge.ToNNX alone would leave the batch statistics unchanged.
  moved = jax.tree.map(
      lambda new, old: bool((new != old).any()),
      stats,
      variables['batch_stats'],
  )
  assert all(jax.tree.leaves(moved))


def test_nnx_takes_two_collections(model, variables):
  with pytest.raises(ValueError, match='variables has cache'):
    gswinrmt_jax.to_nnx(model, {**variables, 'cache': {}})


def test_weights_that_ship_are_small_and_say_what_they_are():
  for name in gswinrmt_jax.list_models(pretrained=True):
    folder = pathlib.Path(gswinrmt_jax.__file__).parent / 'pretrained' / name
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 5e6
    text = (folder / 'README.md').read_text()
    parts = 'license: ', 'epochs', '| test accuracy |', 'parameters;'
    for part in (*parts, 'Please cite gswinrmt_jax and the papers'):
      assert part in text, (name, part)
    figures = load.read_card(name).figures  # An export shows those of its step.
    best = figures['best']
    assert figures['checkpoint'] == {
        key: best[key] for key in ('step', 'epoch', 'weights')
    }
