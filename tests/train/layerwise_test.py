"""Tests which layers train, and with which learning rate."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.models import factory, layers
from gswinrmt_jax.models.dense import segmenter
from gswinrmt_jax.train import layerwise, optimizer, train_state
from gswinrmt_jax.train import train_step as step_lib

_SIZES = {
    'widths': (8, 8, 16),
    'depths': (1, 2, 1),
    'num_heads': (1, 1, 1),
    'mlp_ratios': (1.0, 1.0, 1.0),
    'decay_ranges': (4.0, 4.0, 4.0),
    'layer_scale': (0.1, 0.1, 0.1),
    'full_stages': (),
    'window_size': 2,
}


# The frozen parts, in the order of the model.
_FROZEN = {
    '': (),
    'stem': ('stem',),
    'stage1': ('stem', 'stage1'),
    'stage2': ('stem', 'stage1', 'down1', 'stage2'),
    'stage3': ('stem', 'stage1', 'down1', 'stage2', 'down2', 'stage3'),
}
_FROZEN['backbone'] = (*_FROZEN['stage3'], 'proj', 'proj_norm')


def _classifier(**fields):
  return factory.create_model(
      'retention_compact', num_classes=3, **{**_SIZES, **fields}
  )


def _parts(tree, split=1):
  """Returns the values of a tree of one value each, by the part's name."""
  found = {}
  for path, value in jax.tree.leaves_with_path(tree):
    names = [entry.key for entry in path]
    names = names[1:] if names[0] == 'backbone' else names
    found.setdefault('/'.join(names[:split]), set()).add(value)
  assert all(len(values) == 1 for values in found.values())
  return {name: values.pop() for name, values in found.items()}


def _params(model):
  return factory.variable_shapes(model, (32, 32, 3))['params']


def test_learning_rates_fall_by_a_factor_per_block():
  """Layers by hand: stem 0, blocks 1 to 4 of three stages, head 5."""
  scales = layerwise.layer_scales(_params(_classifier(head='proj')), 0.5)
  blocks = {name: scales.pop(name) for name in ('stage1', 'stage2', 'stage3')}
  assert _parts(blocks, 2) == {
      'stage1/block00': 0.5**4,
      'stage2/block00': 0.5**3,
      'stage2/block01': 0.5**2,
      'stage3/block00': 0.5**1,
  }
  assert _parts(scales) == {
      'stem': 0.5**5,
      'down1': 0.5**3,
      'down2': 0.5**1,
      'proj': 1.0,
      'proj_norm': 1.0,
      'head': 1.0,
  }


def test_blocks_are_in_the_order_of_their_numbers():
  """As text, 'block100' would follow 'block10'."""
  params = {
      'stem': np.zeros(1),
      'stage1': {f'block{i:02d}': np.zeros(1) for i in range(102)},
  }
  scales = layerwise.layer_scales(params, 0.5)['stage1']
  assert scales['block101'] == 0.5 and scales['block100'] == 0.25
  assert scales['block11'] == 2 * scales['block10']


def test_in_a_segmenter_they_fall_from_its_heads():
  model = segmenter.create_segmenter(
      'retention_compact',
      head='uper',
      num_classes=3,
      **{**_SIZES, 'feature_norm': True},
  )
  params = _params(model)
  scales = layerwise.layer_scales(params, 0.5)
  assert scales['backbone']['stem']['conv0']['kernel'] == 0.5**5
  assert scales['backbone']['feature_norm1']['scale'] == 1
  assert set(jax.tree.leaves(scales['decode_head'])) == {1.0}
  frozen = _parts(layerwise.frozen_mask(params, 'backbone'))
  assert {name for name, held in frozen.items() if held} == {
      *('stem', 'stage1', 'down1', 'stage2', 'down2', 'stage3')
  }


class _Part(nn.Module):
  """A linear layer, BatchNorm and dropout, at `train`."""

  @nn.compact
  def __call__(self, x, *, train):
    x = nn.Dense(4, name='linear')(x)
    x = layers.BatchNorm(name='norm')(x, train=train)
    return nn.Dropout(0.5, deterministic=not train)(x)


class _Model(nn.Module):
  """Modules with the names of a backbone of three stages."""

  @nn.compact
  def __call__(self, x, *, train):
    x = x.mean((1, 2), keepdims=True)
    for name in _FROZEN['backbone']:
      x = _Part(name=name)(x, train=train)
    x = layers.BatchNorm(name='head_norm')(x, train=train)
    return nn.Dense(3, name='head')(x)[:, 0, 0]


@pytest.mark.parametrize('name', ['adamw', 'muon'])
def test_an_update_is_that_of_the_optimizer_times_the_factor(name):
  """Weight decay and schedule included: it is the rate that is scaled."""
  leaf = jnp.full((2, 2), 0.3)
  block = {'kernel': leaf, 'bias': leaf[0]}
  params = {'stem': block, 'stage1': {'block00': block}, 'head': block}
  scales = {'stem': 0.25, 'stage1': 0.5, 'head': 1.0}
  rate = optax.linear_schedule(0.1, 0.2, 5)
  plain, scaled = _optimizer(rate, name), _optimizer(rate, name, decay=0.5)
  expected = {
      part: jax.tree.map(lambda update, by=scales[part]: by * update, updates)
      for part, updates in plain.update(params, plain.init(params), params)[
          0
      ].items()
  }
  updates, state = scaled.update(params, scaled.init(params), params)
  jax.tree.map(np.testing.assert_array_equal, updates, expected)
  assert float(optimizer.last_learning_rate(rate, state)) == rate(0)


def _optimizer(rate, name='adamw', *, decay=1.0, freeze=''):
  config = recipes.defaults('retention_compact').optimizer
  config.update(name=name, layer_decay=decay, freeze=freeze)
  return optimizer.from_config(config, rate)


@pytest.fixture(scope='module', name='trained')
def _trained():
  """Returns a function: what is frozen -> states around three steps."""
  model = _Model()
  rng = np.random.default_rng(0)
  batch = {
      'image': jnp.asarray(rng.normal(size=(4, 16, 16, 3)), jnp.float32),
      'label': jnp.asarray([0, 1, 2, 0]),
  }

  def augmentation(key, batch, step):
    return batch['image'], jax.nn.one_hot(batch['label'], 3)

  @functools.cache
  def start(freeze, statistics):
    """Returns the state and the compiled step."""
    tx = _optimizer(lambda _: 0.1, freeze=freeze)
    create = jax.jit(
        lambda: train_state.create(
            model, tx, jax.random.key(0), (16, 16, 3), ema=True
        )
    )
    step = step_lib.make_train_step(
        model,
        tx,
        augmentation,
        ema_decay=0.9,
        freeze=freeze,
        freeze_statistics=statistics,
    )
    return create(), jax.jit(step)

  def train(freeze, drop_key=0, statistics=False):
    before, step = start(freeze, statistics)
    after = before
    for _ in range(3):
      after, metrics = step(after, batch, jax.random.key(drop_key))
    return before, after, metrics

  return train


@pytest.mark.parametrize('freeze', _FROZEN)
def test_what_is_frozen(freeze):
  mask = layerwise.frozen_mask(_params(_classifier(head='proj')), freeze)
  assert {part for part, held in _parts(mask).items() if held} == set(
      _FROZEN[freeze]
  )


@pytest.mark.parametrize('freeze', ['stage2', 'backbone'])
def test_what_is_frozen_stays_bit_for_bit(trained, freeze):
  """Parameters, BatchNorm statistics and their average; the rest moves."""
  before, after, _ = trained(freeze)
  pairs = zip(
      jax.tree.leaves_with_path((before.variables, before.ema)),
      jax.tree.leaves((after.variables, after.ema)),
      strict=True,
  )
  moved = {}
  for (path, old), new in pairs:
    part = path[2].key
    moved.setdefault(part, []).append(bool((old != new).any()))
  still = {part for part, changes in moved.items() if not any(changes)}
  assert still == set(_FROZEN[freeze])
  assert all(moved['head'])


def test_frozen_statistics_stay_while_weights_are_trained(trained):
  """Those of the backbone; the head has a BatchNorm of its own."""
  before, after, _ = trained('', statistics=True)
  same = jax.tree.map(
      lambda old, new: bool((old == new).all()),
      before.batch_stats,
      after.batch_stats,
  )
  assert _parts(same) == {
      **dict.fromkeys(_FROZEN['backbone'], True),
      'head_norm': False,
  }
  old, new = (
      state.params['stem']['norm']['scale'] for state in (before, after)
  )
  assert (old != new).all()
  # The first step normalises by mean 0 and variance 1.
  stem = layers.BatchNorm(name='stem')
  x = jnp.arange(12.0).reshape(3, 1, 1, 4)
  variables = stem.init(jax.random.key(0), x, train=False)

  class Whole(nn.Module):

    @nn.compact
    def __call__(self, x):
      return layers.BatchNorm(name='stem')(x, train=True)

  nested = {kind: {'stem': tree} for kind, tree in variables.items()}
  with layerwise.evaluate_frozen('', True):
    out, _ = Whole().apply(nested, x, mutable=['batch_stats'])
  np.testing.assert_allclose(out, x, rtol=1e-4)


def test_no_gradient_reaches_what_is_frozen():
  def total(params):
    params = layerwise.stop_gradients(params, 'stem')
    return sum((leaf**2).sum() for leaf in jax.tree.leaves(params))

  grads = jax.grad(total)(
      {'stem': {'a': jnp.ones(2)}, 'head': {'b': jnp.ones(3)}}
  )
  assert grads['stem']['a'].tolist() == [0, 0]
  assert grads['head']['b'].tolist() == [2, 2, 2]


def test_a_frozen_backbone_has_no_dropout(trained):
  """Nor stochastic depth: two keys would give two losses."""
  losses_of = [float(trained('backbone', key)[2]['loss']) for key in (0, 1)]
  assert losses_of[0] == losses_of[1]


def test_frozen_parameters_have_no_moments():
  params = _params(_classifier())
  state = jax.eval_shape(_optimizer(lambda _: 0.1, freeze='stem').init, params)
  paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(state)]
  assert any("['head']" in path for path in paths)
  assert not any("['stem']" in path for path in paths)


def test_trained_parameters_are_counted():
  params = _params(_classifier())
  count = layerwise.trained_count(params, 'backbone')
  assert count == 16 * 3 + 3
