"""The weights of one token, against loops written from the equations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weight_loops

from gswinrmt_jax.maps import reach
from gswinrmt_jax.models import attention, named
from gswinrmt_jax.ops import rotary

# Windows of 3 on 5 x 7: two shifts cut partial windows on both axes.
H, W, N, D = 5, 7, 3, 4
C = N * D
RATES = np.array([[0.5, 0.8, 0.9], [0.7, 0.6, 0.95]])


def _setup(name, impl, *, stage=0, shifted=True, **fields):
  """An attention without parameters as a function of V, and its inputs."""
  arch = dataclasses.replace(
      named.MODELS[f'{name}_compact'],
      widths=(C,) * 4,
      num_heads=(N,) * 4,
      window_size=0 if name == 'rmt' else 3,
      attention_impl=impl,
      **fields,
  )
  module = attention.Attention(arch, stage, shifted, jnp.float32)
  rng = np.random.default_rng(0)
  query, key, value = jnp.float32(rng.normal(size=(3, 1, H, W, C)))
  rates = RATES[:1] if stage == 3 and arch.full_stages else RATES

  def mix(value):
    q, k = query, key
    if arch.rotary == 'interleaved':  # in the order of the projections
      q, k = (rotary.arranged(x, N) for x in (query, key))
    return module.attend(q, k, value, jnp.float32(np.log(rates)))

  return mix, np.asarray(query[0]), np.asarray(key[0]), value, rates


def _looking(mix):
  return jax.jit(
      lambda value, token: reach.effective_weights(mix, value, N, token)
  )


_CASES = [
    ('retention', 'banded', {}),
    ('retention', 'cyclic', {}),
    ('retention', 'banded', {'shifted': False}),
    ('swat', 'banded', {}),
    ('swat', 'cyclic', {}),
    ('rmt', 'banded', {}),
    ('rmt', 'banded', {'stage': 3}),
]


@pytest.mark.parametrize(('name', 'impl', 'options'), _CASES)
def test_weights_are_those_of_the_equations(name, impl, options):
  """Two tokens: inside, and in the last partial window of both axes."""
  mix, query, key, value, rates = _setup(name, impl, **options)
  look = _looking(mix)
  for token in ((2, 3), (H - 1, W - 1)):
    out, weights = look(value, token)
    expected = weight_loops.row(
        name,
        query.reshape(H, W, N, D),
        key.reshape(H, W, N, D),
        rates,
        token,
        window=None if name == 'rmt' else 3,
        shift=1 if options.get('shifted', True) else 0,
    )
    assert weights.shape == (1, N, H, W)
    np.testing.assert_allclose(weights[0], expected, atol=1e-6)
    # What it gives to the values is the output, to rounding.
    heads = np.asarray(value)[0].reshape(H, W, N, D)
    np.testing.assert_allclose(
        np.einsum('nHW,HWnd->nd', weights[0], heads).ravel(),
        out[0, token[0], token[1]],
        atol=1e-5,
    )


def test_outside_of_the_window_is_exactly_nothing():
  """Window 3 shifted by 1: columns 0 | 123 | 456, rows 0 | 123 | 4."""
  mix, _, _, value, _ = _setup('swat', 'banded')
  _, weights = _looking(mix)(value, (4, 5))
  seen = np.zeros((H, W), bool)
  seen[4:, 4:] = True
  assert ((np.asarray(weights[0]) != 0) == seen).all()


def test_mean_distance_by_hand():
  """From row 1, column 2: weights 1 and 3 at distances 3 and 1, 6 / 4."""
  weights = np.zeros((3, 2, 3), np.float32)
  weights[0, 0, 0], weights[0, 0, 2] = 1, 3
  weights[1, 1, 2] = 0.1
  np.testing.assert_allclose(reach.mean_distance(weights, (1, 2)), [1.5, 0, 0])


def test_decay_kernel_by_hand():
  """Rates of (width, height): columns fade by 1/2, rows by 1/4."""
  rates = np.array([[0.5, 1.0], [0.25, 1.0]])
  kernel = reach.decay_kernel(rates, (1, 2))
  assert kernel.shape == (2, 3, 5)
  np.testing.assert_allclose(
      kernel[0],
      [
          [1 / 16, 1 / 8, 1 / 4, 1 / 8, 1 / 16],
          [1 / 4, 1 / 2, 1, 1 / 2, 1 / 4],
          [1 / 16, 1 / 8, 1 / 4, 1 / 8, 1 / 16],
      ],
  )
  np.testing.assert_allclose(kernel[1], 1)
  both = reach.decay_kernel(np.array([[0.5]]), (1, 1))
  np.testing.assert_allclose(both[0, 0], [1 / 4, 1 / 2, 1 / 4])


def test_distance_of_weights_that_may_be_negative():
  weights = np.float32([[[3, -1], [0, 0]], [[-1, 0], [0, 1]]])
  np.testing.assert_allclose(
      reach.mean_distance(weights, (0, 0)), [1 / 4, 2 / 2]
  )
