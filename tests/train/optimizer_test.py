"""Tests weight decay and optimisers against formulas."""

import math

import deep_shapes
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.models import factory
from gswinrmt_jax.models.dense import detector, segmenter
from gswinrmt_jax.train import optimizer

PARAMS = {
    'stem': {
        'conv0': {'kernel': jnp.ones((3, 3, 2, 5)), 'bias': jnp.ones(5)},
        'norm0': {'scale': jnp.ones(5), 'bias': jnp.ones(5)},
    },
    'stage1': {
        'block00': {
            'position': {'kernel': jnp.ones((3, 3, 1, 5)), 'bias': jnp.ones(5)},
            'attention': {'decay_logit': jnp.ones((2, 1))},
            'attention_scale': jnp.ones(5),
            'ffn_scale': jnp.ones(5),
        }
    },
}
KERNELS = {'stem/conv0/kernel', 'stage1/block00/position/kernel'}


def _optimizer(rates, **fields):
  config = recipes.defaults('retention_compact').optimizer
  config.update(fields)
  return optimizer.from_config(config, rates)


def _paths(tree):
  return {
      '/'.join(entry.key for entry in path): leaf
      for path, leaf in jax.tree.leaves_with_path(tree)
  }


def _decaying(rule, params, **how):
  mask = _paths(optimizer.decay_mask(rule, params, **how))
  return {path for path, decays in mask.items() if decays}


def test_only_kernels_decay_by_path_and_layer_scale_if_asked_to():
  assert _decaying('kernels', PARAMS) == KERNELS
  scales = {f'stage1/block00/{name}_scale' for name in ('attention', 'ffn')}
  assert _decaying('kernels', PARAMS, layer_scale=True) == KERNELS | scales


# Whether a parameter decays where the rule goes by its released name.
_NOT_NORMS = {
    'backbone/stem/conv0/bias': True,
    'backbone/stem/norm0/scale': True,  # patch_embed.proj.1
    'backbone/stage3/block00/attention_norm/scale': False,
    'backbone/stage3/block00/ffn/up/bias': True,
    'backbone/stage3/block00/attention_scale': True,  # gamma_1
    'backbone/down1/conv/kernel': True,
    'backbone/down1/norm/scale': False,
    'backbone/feature_norm4/bias': False,
    'decode_head/lateral1/norm/scale': True,  # lateral_convs.0.bn
    'decode_head/classifier/conv/bias': True,
    'auxiliary_head/conv/norm/bias': True,
}


def test_what_decays_in_the_released_segmenters():
  model = segmenter.create_segmenter(
      'rmt_b', head='uper', num_classes=150, depths=(1, 1, 1, 1)
  )
  params = factory.variable_shapes(model, (32, 32, 3))['params']
  everything = _paths(optimizer.decay_mask('all', params))
  assert all(everything.values())
  mask = _paths(optimizer.decay_mask('not_norms', params))
  assert {path: mask[path] for path in _NOT_NORMS} == _NOT_NORMS
  # Two norms per block, three of downsamplings and four of feature maps, each
  # with scale and bias.
  assert list(mask.values()).count(False) == 2 * (4 * 2 + 3 + 4)


def test_batch_norms_of_a_cascade_do_not_decay():
  """In the release, `norm_decay_mult=0` is for norm layers of any name.

  `not_norms` is `custom_keys={'norm': 0}` alone, the rule of Mask R-CNN.
  """
  model = detector.create_detector('rmt_b', head='cascade', depths=(1, 1, 1, 1))
  params = factory.variable_shapes(model, (64, 64, 3))['params']
  by_name = _decaying('not_norms', params)
  by_layer = _decaying('not_norm_layers', params)
  batch_norms = {f'backbone/stem/norm{i}' for i in range(4)} | {
      f'head/box_heads_{i}/convs_{j}/norm' for i in range(3) for j in range(4)
  }
  leaves = {
      f'{norm}/{leaf}' for norm in batch_norms for leaf in ('scale', 'bias')
  }
  assert by_layer < by_name and by_name - by_layer == leaves
  assert len(_paths(params)) - len(by_name) == 2 * (4 * 2 + 3 + 4)


def test_decay_logits_never_decay_and_other_models_have_our_names():
  params = {'attention': PARAMS['stage1']['block00']['attention']}
  params['attention'] |= {'gate': {'bias': jnp.ones(3)}}
  params['attention'] |= {'head_norm': {'scale': jnp.ones(3)}}
  for rule, norm in (('all', True), ('not_norms', False)):
    mask = optimizer.decay_mask(rule, {'stage1': {'block00': params}})
    assert mask['stage1']['block00']['attention'] == {
        'decay_logit': False,
        'gate': {'bias': True},
        'head_norm': {'scale': norm},
    }


# name -> (tensors, elements) without decay and with, in the authors' code.
RELEASED = {
    'rmt_t': ((207, 66_088), (135, 14_268_128)),
    'rmt_s': ((402, 133_864), (270, 26_833_376)),
    'rmt_l': ((610, 329_016), (480, 95_135_848)),
}


@pytest.mark.parametrize('name', RELEASED)
def test_what_decays_is_what_decays_in_the_released_code(name):
  model = factory.create_model(name, num_classes=1000)
  params = deep_shapes.variable_shapes(model, (32, 32, 3))['params']
  mask = optimizer.decay_mask('kernels', params, layer_scale=True)
  sizes = {True: [], False: []}
  for leaf, decays in zip(
      jax.tree.leaves(params), jax.tree.leaves(mask), strict=True
  ):
    sizes[decays].append(leaf.size)
  counts = [(len(sizes[key]), sum(sizes[key])) for key in (False, True)]
  assert counts == list(RELEASED[name])


def _adamw_by_hand(params, grads, rates, decay, eps=1e-3):
  """Runs Kingma and Ba's Algorithm 1 with decoupled decay, in float64."""
  m, v, b1, b2 = 0.0, 0.0, 0.8, 0.95
  for t, (g, rate) in enumerate(zip(grads, rates, strict=True), 1):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    ratio = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    params = params - rate * (ratio + decay * params)
  return params


def test_ten_updates_are_those_of_the_algorithm():
  """With a varying learning rate; one leaf decays, the other does not."""
  rates = optax.linear_schedule(0.1, 0.5, 10)
  tx = _optimizer(rates, b1=0.8, b2=0.95, eps=1e-3, weight_decay=0.25)
  rng = np.random.default_rng(0)
  grads = rng.normal(size=(10, 7))
  params = {'kernel': jnp.ones(7), 'bias': jnp.ones(7)}
  state = tx.init(params)
  for gradient in grads:
    gradient = jnp.asarray(gradient, jnp.float32)
    updates, state = tx.update(
        {'kernel': gradient, 'bias': gradient}, state, params
    )
    params = optax.apply_updates(params, updates)
  rates = [float(rates(t)) for t in range(10)]
  for name, decay in (('kernel', 0.25), ('bias', 0.0)):
    expected = _adamw_by_hand(np.ones(7), grads, rates, decay)
    np.testing.assert_allclose(params[name], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize('name', ['adamw', 'muon'])
def test_the_gradient_of_all_parameters_is_clipped(name):
  """To a norm of 2; with a large epsilon, Adam's update depends on it."""
  rng = np.random.default_rng(0)
  first, second = rng.normal(size=(2, 2, 7))
  grads = [3 * first, 0.1 * second]  # of norm above 2, and below
  norms = [np.linalg.norm(gradient) for gradient in grads]
  assert norms[0] > 2 > norms[1]
  how = {'name': name, 'b1': 0.8, 'b2': 0.95, 'eps': 1.0, 'weight_decay': 0.0}
  tx = _optimizer(lambda _: 0.1, clip_norm=2.0, **how)
  params = {'a': jnp.ones(7), 'b': jnp.ones(7)}
  state = tx.init(params)
  for gradient in grads:
    gradient = dict(zip('ab', jnp.float32(gradient), strict=True))
    updates, state = tx.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
  clipped = [grads[0] * 2 / norms[0], grads[1]]
  for row, leaf in enumerate('ab'):
    expected = _adamw_by_hand(
        np.ones(7), [one[row] for one in clipped], (0.1, 0.1), 0.0, eps=1.0
    )
    np.testing.assert_allclose(params[leaf], expected, rtol=2e-6)
  assert optimizer.last_learning_rate(lambda _: 0.1, state) == 0.1


def _muon_by_hand(w, grads, rates, decay):
  """Muon in float64, for a matrix `w`.

  As in optax, and unlike in Jordan's code, the Nesterov momentum of 0.95 is
  bias-corrected.
  """
  momentum, beta = 0.0, 0.95
  for t, (g, rate) in enumerate(zip(grads, rates, strict=True), 1):
    momentum = beta * momentum + (1 - beta) * g
    ahead = beta * momentum / (1 - beta ** (t + 1))
    x = ahead + (1 - beta) * g / (1 - beta**t)
    x /= np.linalg.norm(x)
    for _ in range(5):  # Newton-Schulz, towards U V^T of the SVD U S V^T
      a = x @ x.T
      x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    w = w - rate * (0.2 * math.sqrt(max(w.shape)) * x + decay * w)
  return w


@pytest.mark.parametrize(
    'shape, matrix', [((4, 6), (4, 6)), ((3, 2, 5, 4), (30, 4))]
)
def test_updates_of_matrices_are_those_of_muon(shape, matrix):
  """Of a linear layer, and of a convolution over all channels."""
  rates = optax.linear_schedule(0.1, 0.5, 4)
  tx = _optimizer(rates, name='muon', weight_decay=0.25)
  rng = np.random.default_rng(0)
  start, *grads = rng.normal(size=(5, *shape))
  params = {'query': {'kernel': jnp.asarray(start, jnp.float32)}}
  state = tx.init(params)
  for gradient in grads:
    gradient = {'query': {'kernel': jnp.asarray(gradient, jnp.float32)}}
    updates, state = tx.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
  expected = _muon_by_hand(
      start.reshape(matrix),
      [one.reshape(matrix) for one in grads],
      [float(rates(t)) for t in range(4)],
      0.25,
  )
  np.testing.assert_allclose(
      params['query']['kernel'].reshape(matrix), expected, rtol=1e-4, atol=1e-5
  )


def test_muon_leaves_what_is_no_matrix_to_adam():
  """Whatever its shape, with the same weight decay."""
  rates = optax.linear_schedule(0.1, 0.5, 10)
  fields = {'b1': 0.8, 'b2': 0.95, 'eps': 1e-3, 'weight_decay': 0.25}
  rng = np.random.default_rng(0)
  params = {
      'head': {'kernel': rng.normal(size=(4, 3)), 'bias': rng.normal(size=3)},
      'stage1': {
          'local': {'kernel': rng.normal(size=(3, 3, 1, 4))},
          'decay_logit': rng.normal(size=(2, 2)),
          'attention_scale': rng.normal(size=4),
      },
      'norm': {'scale': rng.normal(size=4), 'bias': rng.normal(size=4)},
  }
  params = jax.tree.map(jnp.float32, params)
  results = []
  for name in ('muon', 'adamw'):
    tx = _optimizer(rates, name=name, **fields)
    state, after = tx.init(params), params
    for _ in range(3):
      updates, state = tx.update(params, state, after)
      after = optax.apply_updates(after, updates)
    results.append(after)
    assert float(optimizer.last_learning_rate(rates, state)) == rates(2)
  jax.tree.map(np.testing.assert_array_equal, *results)
