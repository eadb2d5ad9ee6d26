"""Tests the models against the oracle, both in float64, with random parameters.

Image sizes give partial windows and patches, odd extents and non-square maps;
of two or three blocks with windows, one is shifted. Every parameter differs
from its initial value, so that a wrong detail changes the logits. Of thirty
changes that were tried, the smallest effects were 1.2e-5 (layer norm with an
epsilon of 1e-5) and 1.4e-4 (tanh GELU); rounding accounts for 1.4e-14.
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
    'rmt_swin_t': {'system': 'rmt', 'head': 'norm', 'full_stages': (4,)},
    'rmt_deit_s': {
        'system': 'rmt',
        'head': 'norm',
        'full_stages': (1,),
        'decay_range': (6,),
    },
}


def _model(name, window, depths):
  overrides = {} if window is None else {'window_size': window}
  return gswinrmt_jax.create_model(
      name,
      num_classes=7,
      dtype='float32',
      depths=depths,
      drop_path_rate=0.0,
      **{field: sizes[: len(depths)] for field, sizes in _SIZES.items()},
      **overrides,
  )


@functools.cache
def _case(name, window, size, depths):
  """Returns variables, image and the oracle's result, cached for all tests."""
  image = np.random.default_rng(size).normal(size=(2, *size, 3))
  image = image.astype(np.float32)
  # The variables fit images of every size.
  variables = random_variables.flat(
      _model(name, window, depths), (1, 32, 32, 3)
  )
  config = {
      'depths': depths,
      'num_heads': _SIZES['num_heads'],
      'window_size': window,
      'decay_range': (4, 4, 6, 6),
      **_ORACLE[name],
  }
  return variables, image, oracle.forward(variables, image, config)


# Stage maps of 75x106: 19x27, 10x14, 5x7, 3x4; of 64x96: 16x24, 8x12, 4x6,
# 2x3; of 45x70: 12x18, 6x9, 3x5, 2x3; in DeiT's skeleton, of 40x64: 3x4.
# Compilation dominates the time, so models are only as deep as their case
# needs.
@pytest.mark.parametrize(
    'name,window,size,depths',
    [
        ('rmt_compact', None, (75, 106), (1, 1, 1, 1)),
        ('rmt_t', None, (64, 96), (1, 1, 1, 1)),
        ('retention_compact', 4, (75, 106), (2, 2, 3, 1)),
        ('swat_compact', 5, (75, 106), (2, 2, 3, 1)),
        ('rmt_swin_t', None, (45, 70), (1, 1, 1, 1)),
        ('rmt_deit_s', None, (40, 64), (2,)),
    ],
)
def test_model_agrees_with_the_oracle(name, window, size, depths):
  flat, image, want = _case(name, window, size, depths)
  model = _model(name, window, depths)
  with jax.enable_x64(True):
    logits, maps = _answer(model.clone(dtype=jnp.float64), flat, image)
  assert logits.dtype == jnp.float64
  assert want.keys() == {'stem', *maps, 'logits'}
  for stage, got in sorted(maps.items()):
    np.testing.assert_allclose(
        got, want[stage], rtol=0, atol=1e-12, err_msg=stage
    )
  np.testing.assert_allclose(logits, want['logits'], rtol=0, atol=1e-12)


# Errors relative to the largest value are 2e-7 to 7e-7, and 1.7e-6 for the
# 512 terms of RMT-T's logits as JAX 0.12 sums them.
@pytest.mark.parametrize(
    'name,window,size,depths',
    [
        ('retention_compact', 3, (64, 96), (2, 1, 2, 1)),
        pytest.param(
            'swat_compact', 3, (64, 96), (1, 2, 2, 1), marks=pytest.mark.slow
        ),
        pytest.param(
            'rmt_t', None, (64, 96), (1, 1, 1, 1), marks=pytest.mark.slow
        ),
    ],
)
def test_float32_differs_by_its_rounding_only(name, window, size, depths):
  flat, image, want = _case(name, window, size, depths)
  logits, maps = _answer(_model(name, window, depths), flat, image)
  assert logits.dtype == jnp.float32
  for key, got in (*sorted(maps.items()), ('logits', logits)):
    error = np.abs(got - want[key]).max() / np.abs(want[key]).max()
    assert error < 2e-6, key


def _answer(model, flat, image):
  """Returns logits and feature maps, all computed in the model's dtype."""
  variables = traverse_util.unflatten_dict(
      {path: jnp.asarray(array, model.dtype) for path, array in flat.items()},
      sep='/',
  )

  @jax.jit
  def run(variables, image):
    logits, found = model.apply(
        variables,
        image,
        train=False,
        mutable=['intermediates'],
        capture_intermediates=lambda _, method: method == 'features',
    )
    (maps,) = found['intermediates']['features']
    return logits, maps

  return jax.device_get(run(variables, jnp.asarray(image, model.dtype)))
