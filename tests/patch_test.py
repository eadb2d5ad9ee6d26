"""Patch embedding and merging, against loops over pixels in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax.models import patch


def _params(module, shape):
  class AsModel:

    def init(self, key, x, train):
      return module.init(key, x, train=train)

  return random_variables.nested(AsModel(), shape)['params']


def _norm(params, x):
  centred = x - x.mean(-1, keepdims=True)
  x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
  return x * np.asarray(params['scale']) + np.asarray(params['bias'])


@pytest.mark.parametrize('use_norm', [False, True])
@pytest.mark.parametrize('size', [(8, 12), (9, 14), (3, 2)])
def test_embedding_matches_loops(size, use_norm):
  """Whole patches, and patches that zeros fill up on the right and below."""
  x = random_variables.image((2, *size, 3))
  module = patch.PatchEmbedding(5, 4, use_norm, jnp.float32)
  params = _params(module, x.shape)
  image = np.asarray(x, np.float64)
  kernel, bias = (np.asarray(params['conv'][k]) for k in ('kernel', 'bias'))
  rows, columns = (-(-extent // 4) for extent in size)
  expected = np.tile(bias.astype(np.float64), (2, rows, columns, 1))
  for b, row, column in np.ndindex(2, *size):
    expected[b, row // 4, column // 4] += (
        image[b, row, column] @ kernel[row % 4, column % 4]
    )
  if use_norm:
    expected = _norm(params['norm'], expected)
  actual = module.apply({'params': params}, x, train=False)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize('size', [(4, 6), (5, 7), (1, 1)])
def test_merging_matches_loops(size):
  x = random_variables.image((2, *size, 3))
  module = patch.PatchMerging(5, jnp.float32)
  params = _params(module, x.shape)
  rows, columns = (-(-extent // 2) for extent in size)
  joined = np.zeros((2, rows, columns, 12))
  for b, row, column in np.ndindex(2, *size):
    # Of four neighbours: upper left, lower left, upper right, lower right.
    place = 2 * (column % 2) + row % 2
    joined[b, row // 2, column // 2, 3 * place : 3 * place + 3] = x[
        b, row, column
    ]
  kernel = np.asarray(params['linear']['kernel'], np.float64)
  assert params['linear'].keys() == {'kernel'}
  np.testing.assert_allclose(
      module.apply({'params': params}, x, train=True),
      _norm(params['norm'], joined) @ kernel,
      rtol=0,
      atol=5e-6,
  )


def test_how_they_start():
  """The embedding as a convolution, the merging as a linear layer."""
  key = jax.random.key(0)
  embedding = patch.PatchEmbedding(64, 4, False, jnp.float32)
  init = jax.jit(embedding.init, static_argnames='train')
  conv = init(key, jnp.zeros((1, 8, 8, 3)), train=False)['params']['conv']
  assert conv['kernel'].shape == (4, 4, 3, 64)
  for leaf in conv.values():
    assert 0.9 / np.sqrt(48) < np.abs(leaf).max() <= 1 / np.sqrt(48)
  merging = patch.PatchMerging(100, jnp.float32)
  init = jax.jit(merging.init, static_argnames='train')
  params = init(key, jnp.zeros((1, 2, 2, 50)), train=False)['params']
  assert params['norm']['scale'].shape == (200,)
  kernel = np.asarray(params['linear']['kernel'])
  np.testing.assert_allclose(kernel.std(), 0.02, rtol=0.02)
