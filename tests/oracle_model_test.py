"""The package in float32 against the float64 oracle, every parameter random.

Sizes are chosen so that windows are partial, extents odd and maps not square;
a stage of two or more blocks has a shifted one. Every weight differs from its
initial value, so that a wrong detail shows in the logits: an epsilon of 1e-5 in
the layer norms moves them by 1.2e-5 and a tanh GELU by 1.4e-4, the least of
thirty changes that were tried, against 1.5e-6 of float32 rounding.
"""

import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import random_variables

import gswinrmt_jax

_SIZES = {
    'widths': (16, 24, 32, 48),
    'num_heads': (2, 3, 4, 6),
    'mlp_ratios': (3, 2, 3, 2),
}
_ORACLE = {
    'retention_compact': {'system': 'retention', 'head': 'norm'},
    'swat_compact': {'system': 'swat', 'head': 'norm'},
    'rmt_compact': {'system': 'rmt', 'head': 'norm', 'full_stages': (4,)},
    'rmt_t': {'system': 'rmt', 'head': 'proj', 'full_stages': (3, 4)},
}
_CYCLIC = {'attention_impl': 'cyclic'}
_BANDED = {'attention_impl': 'banded'}


def _model(name, window, depths, **overrides):
  if window is not None:
    overrides['window_size'] = window
  return gswinrmt_jax.create_model(
      name,
      num_classes=7,
      dtype='float32',
      depths=depths,
      drop_path_rate=0.0,
      **_SIZES,
      **overrides,
  )


@functools.cache
def _case(name, window, size, depths):
  """Variables, image and the oracle's answer; once for all implementations."""
  image = np.random.default_rng(size).normal(size=(2, *size, 3))
  image = image.astype(np.float32)
  variables = random_variables.flat(_model(name, window, depths), image.shape)
  config = {
      'depths': depths,
      'num_heads': _SIZES['num_heads'],
      'window_size': window,
      'decay_range': (4, 4, 6, 6),
      **_ORACLE[name],
  }
  return variables, image, oracle.forward(variables, image, config)


# Stage maps of 75x106: 19x27, 10x14, 5x7, 3x4; of 64x96: 16x24, 8x12, 4x6,
# 2x3; of 32x32: 8x8, 4x4, 2x2, 1x1. Compiling is what takes the time: models
# are as deep as their case needs.
@pytest.mark.parametrize(
    'name,window,size,depths,overrides',
    [
        ('rmt_compact', None, (75, 106), (1, 1, 2, 1), {}),
        ('rmt_t', None, (64, 96), (1, 1, 2, 1), {}),
        ('retention_compact', 4, (75, 106), (2, 2, 3, 1), _CYCLIC),
        ('retention_compact', 4, (75, 106), (2, 2, 3, 1), _BANDED),
        ('swat_compact', 5, (75, 106), (2, 2, 3, 1), _CYCLIC),
        ('swat_compact', 5, (75, 106), (2, 2, 3, 1), _BANDED),
        ('retention_compact', 3, (64, 96), (2, 1, 2, 1), {}),
        ('swat_compact', 3, (64, 96), (1, 2, 2, 1), {}),
        ('retention_compact', 4, (32, 32), (2, 1, 1, 1), _BANDED),
        ('swat_compact', 4, (32, 32), (2, 1, 1, 1), _CYCLIC),
    ],
)
def test_model_agrees_with_the_oracle(name, window, size, depths, overrides):
  flat, image, want = _case(name, window, size, depths)
  variables = traverse_util.unflatten_dict(
      {path: jnp.asarray(array) for path, array in flat.items()}, sep='/'
  )
  model = _model(name, window, depths, **overrides)

  @jax.jit
  def run(variables, image):
    logits = model.apply(variables, image, train=False)
    maps = model.apply(variables, image, train=False, method='features')
    return logits, maps

  logits, maps = run(variables, image)
  assert logits.dtype == jnp.float32
  assert sorted(maps) == ['stage1', 'stage2', 'stage3', 'stage4']
  for stage, got in sorted(maps.items()):
    np.testing.assert_allclose(
        got, want[stage], rtol=0, atol=5e-5, err_msg=stage
    )
  # Some reach 3.1, where float32 has steps of 2.4e-7.
  np.testing.assert_allclose(logits, want['logits'], rtol=1e-6, atol=5e-6)
