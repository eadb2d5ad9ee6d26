"""Tests the attention module: how it starts, and what no named model has.

`oracle_model_test` compares its equation.
"""

import dataclasses

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import random_variables

from gswinrmt_jax import ops
from gswinrmt_jax.models import attention, named

H, W, C = 5, 7, 12
_TINY = {
    'widths': (C, C, C, C),
    'num_heads': (3, 3, 3, 3),
    'window_size': 3,
}
BASES = {
    name: dataclasses.replace(
        named.MODELS[f'{name}_compact'],
        **_TINY if name != 'rmt' else {**_TINY, 'window_size': 0},
    )
    for name in ('rmt', 'retention', 'swat')
}
X = random_variables.image((2, H, W, C))


class _Module:
  """An attention module whose parameters come from their names."""

  def __init__(self, arch, *, stage=0, shifted=True):
    module = attention.Attention(arch, stage, shifted, jnp.float32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), X)
    self.params = random_variables.of_shapes(shapes)['params']
    self._module = module

  def __call__(self):
    return self._module.apply({'params': self.params}, X)


def _linear(params, x):
  return x @ params['kernel'] + params['bias'][None, None, None]


def _local(params, value):
  return (
      ops.depthwise_conv(value, params['local']['kernel'])
      + params['local']['bias'][None, None, None]
  )


def test_learned_decay_starts_at_rmts_values():
  module = attention.Attention(BASES['swat'], 0, False, jnp.float32)

  @jax.jit  # compiles no draw
  def start(key):
    return module.init(key, X)['params']['decay_logit']

  theta = start(jax.random.key(0))
  expected = 1 - 2.0 ** -(2 + 4 * np.arange(3) / 3)
  np.testing.assert_allclose(
      jax.nn.sigmoid(theta), np.stack([expected, expected]), rtol=1e-6
  )


def _plain(params):
  return {
      name: {leaf: np.asarray(a, np.float64) for leaf, a in layer.items()}
      for name, layer in params.items()
  }


def _causal_weights(scores, rate):
  length = len(scores)
  ahead = np.arange(length)[:, None] - np.arange(length)
  return np.where(ahead >= 0, scores * rate ** np.maximum(ahead, 0), 0)


def test_the_gating_function_is_retnets():
  """(swish(X W_G) * (GroupNorm((Q K^T / sqrt(d) * D) V) + LCE(V))) W_O."""
  arch = dataclasses.replace(
      BASES['rmt'],
      score_fn='causal',
      full_stages=(1, 2, 3, 4),
      rotary='none',
      head_norm=True,
      gate=True,
      gate_fn='swish',
  )
  module = _Module(arch, stage=3)
  p, x = _plain(module.params), np.asarray(X, np.float64).reshape(2, H * W, C)
  names = 'query', 'key', 'value', 'gate'
  assert p.keys() == {*names, 'local', 'out'}
  maps = {k: x @ p[k]['kernel'] + p[k]['bias'] for k in names}
  local = _local(module.params, _linear(module.params['value'], X))
  normed = np.zeros_like(x)
  for b, n in np.ndindex(2, 3):
    head = slice(4 * n, 4 * n + 4)
    query, key, value = (maps[k][b, :, head] for k in ('query', 'key', 'value'))
    rate = 1 - 2.0 ** (-2 - 6 * n / 3)
    y = _causal_weights(query @ key.T / 2, rate) @ value
    y = y - y.mean(1, keepdims=True)
    normed[b, :, head] = y / np.sqrt((y**2).mean(1, keepdims=True) + 1e-6)
  swish = maps['gate'] / (1 + np.exp(-maps['gate']))
  gated = (normed + np.asarray(local).reshape(x.shape)) * swish
  expected = gated @ p['out']['kernel'] + p['out']['bias']
  np.testing.assert_allclose(
      module().reshape(x.shape), expected, rtol=0, atol=5e-5
  )


def test_scores_of_full_stages_are_divided_only_if_scaled():
  """By `sqrt(4)`: without it, half the keys give the same weights."""
  arch = dataclasses.replace(
      BASES['rmt'], full_stages=(1, 2, 3, 4), rotary='none', decay='none'
  )

  def weights(key, **fields):
    module = attention.Attention(
        dataclasses.replace(arch, **fields), 0, False, jnp.float32
    )
    return module.apply({}, X, key, None, method='weights')['pairs']

  np.testing.assert_allclose(
      weights(X / 2, scaled=False), weights(X, scaled=True), rtol=1e-5
  )


def test_full_attention_learns_one_decay_per_head():
  arch = dataclasses.replace(BASES['rmt'], decay='learned')
  module = _Module(arch, stage=3)
  assert module.params['decay_logit'].shape == (1, 3)


def _attended(module):
  """Returns the output, and the weights seen by intercepting `attend`."""
  seen = {}

  def look(next_function, args, kwargs, context):
    if context.method_name == 'attend':
      query, key, _, *rest = args
      seen.update(context.module.weights(query, key, *rest))
    return next_function(*args, **kwargs)

  with nn.intercept_methods(look):
    out = module()
  return out, seen


def test_who_intercepts_attend_sees_the_weights():
  """Rows of the softmax sum to 1; a full stage has weights of all pairs."""
  for base, stage, names in (
      ('retention', 0, {'width', 'height'}),
      ('rmt', 3, {'pairs'}),
  ):
    module = _Module(BASES[base], stage=stage)
    out, seen = _attended(module)
    np.testing.assert_array_equal(out, module())
    assert seen.keys() == names
    for weights in seen.values():
      np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_absolute_alibi_without_a_decay():
  """No named model has either. For a query of 0: sigmoid(slope |i - j|) / W."""
  arch = dataclasses.replace(
      BASES['swat'], alibi='absolute', decay='none', window_size=0
  )
  module = _Module(arch)
  assert 'decay_logit' not in module.params
  module.params['query'] = jax.tree.map(jnp.zeros_like, module.params['query'])
  _, seen = _attended(module)
  distance = np.abs(np.subtract.outer(np.arange(W), np.arange(W)))
  for head, slope in enumerate((-1 / 2, 1 / 2, 0)):
    expected = 1 / (1 + np.exp(-slope * distance)) / W
    np.testing.assert_allclose(
        seen['width'][:, :, head], np.tile(expected, (2, H, 1, 1)), rtol=1e-6
    )
