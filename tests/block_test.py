"""The block: residuals, LayerScale, stochastic depth; and its FFN."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax import ops, pallas
from gswinrmt_jax.models import (
    architecture,
    attention,
    block,
    norm,
)

C = 8
ARCH = architecture.Architecture(
    widths=(C, C, C, C), num_heads=(2, 2, 2, 2), window_size=3
)
X = random_variables.image((3, 4, 5, C))


class _AsModel:
  """Lets `random_variables` initialise any module."""

  def __init__(self, module, *arguments):
    self.module, self.arguments = module, arguments

  def init(self, key, x, train):
    del train
    return self.module.init(key, x, *self.arguments)


def _params(module, *arguments):
  return random_variables.nested(_AsModel(module, *arguments), X.shape)[
      'params'
  ]


def _norm(params, x):
  return norm.LayerNorm().apply({'params': params}, x)


def _depthwise(params, x):
  return (
      ops.depthwise_conv(x, params['kernel']) + params['bias'][None, None, None]
  )


def _linear(params, x):
  return x @ params['kernel'] + params['bias'][None, None, None]


def _ffn(params, x, use_norm, use_conv=True):
  hidden = ops.gelu(_linear(params['up'], x))
  if not use_conv:
    return _linear(params['down'], hidden)
  local = _depthwise(params['position'], hidden)
  if use_norm:
    local = _norm(params['norm'], local)
  return _linear(params['down'], hidden + local)


@pytest.mark.parametrize('impl', ['xla', 'pallas'])
def test_ffn_is_its_equation(impl, monkeypatch):
  monkeypatch.setattr(pallas, 'runs_here', lambda: True)  # interpreted
  for use_conv, use_norm in ((True, True), (True, False), (False, False)):
    module = block.FeedForward(
        3 * C, use_conv, use_norm, impl, 'auto', jnp.float32
    )
    params = _params(module)
    assert ('position' in params) == use_conv
    assert ('norm' in params) == use_norm
    np.testing.assert_allclose(
        module.apply({'params': params}, X),
        _ffn(params, X, use_norm, use_conv),
        atol=2e-5,
    )


def test_block_is_its_equation_and_drops_by_branch():
  module = block.Block(ARCH, 0, True, jnp.float32)
  keep = jnp.array([[1.0, 0.0, 2.0], [1.5, 1.0, 0.0]])
  p = _params(module, keep)
  x = X + _depthwise(p['position'], X)
  branch = attention.Attention(ARCH, 0, True, jnp.float32).apply(
      {'params': p['attention']}, _norm(p['attention_norm'], x)
  )
  x += (
      branch
      * p['attention_scale'][None, None, None]
      * keep[0, :, None, None, None]
  )
  branch = _ffn(p['ffn'], _norm(p['ffn_norm'], x), True)
  x += branch * p['ffn_scale'][None, None, None] * keep[1, :, None, None, None]
  np.testing.assert_allclose(module.apply({'params': p}, X, keep), x, atol=5e-5)


def test_switches_of_the_block():
  whole = _params(block.Block(ARCH, 0, False, jnp.float32), None)

  def without(**fields):
    arch = dataclasses.replace(ARCH, **fields)
    return _params(block.Block(arch, 0, False, jnp.float32), None)

  assert whole.keys() - without(position_conv=False).keys() == {'position'}
  assert whole.keys() - without(layer_scale=(0.0, 1.0, 1.0, 1.0)).keys() == {
      'attention_scale',
      'ffn_scale',
  }
  assert 'norm' not in without(ffn_norm=False)['ffn']
  assert without(ffn_conv=False, ffn_norm=False)['ffn'].keys() == {'up', 'down'}
  assert without(mlp_ratios=(1.5, 4.0, 4.0, 4.0))['ffn']['up'][
      'kernel'
  ].shape == (8, 12)


def test_layer_scale_starts_at_its_value():
  module = block.Block(ARCH, 0, False, jnp.float32)
  params = module.init(jax.random.key(0), X, None)['params']
  for name in ('attention_scale', 'ffn_scale'):
    np.testing.assert_array_equal(params[name], np.float32(np.full(C, 1e-2)))
