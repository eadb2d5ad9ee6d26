"""Tests the oracle's modules against values by hand.

`oracle_model_test` compares all of it with the package in float64. Its windows,
scores, rotations and slopes are by hand in `ops/attention_test`,
`ops/cyclic_windows_test` and `ops/positions_test`, of the package, which are
the same; `released_rmt_test` compares the package's RMT with the authors' code.
"""

import math

import numpy as np
import oracle
import pytest


@pytest.mark.parametrize('window,stride', [(3, 3), (None, 5)])
def test_rows_are_one_window_width_apart(window, stride):
  # Two channels rotate by one radian per position, so q k = cos(distance). From
  # row to row the distance is the width of the *window*, even on a padded map.
  ones = np.zeros((1, 2, 5, 1, 2))
  ones[..., 0] = 1.0
  value = np.zeros((1, 2, 5, 1, 1))
  value[:, 0] = 1.0
  out = oracle.attend_windows(
      'retention', ones, ones, value, np.zeros((2, 1)), window
  )
  near, far = (math.exp(x / 2**0.5) for x in (1.0, math.cos(stride)))
  np.testing.assert_allclose(out[0, 0].ravel(), near / (near + far))
  np.testing.assert_allclose(out[0, 1].ravel(), far / (near + far))


# ------------------------------------------------------------ attention module


def _linear(kernel, bias=(0.0, 0.0)):
  return {'kernel': np.array(kernel, float), 'bias': np.array(bias, float)}


def _attention_tree(**more):
  """Returns a tree with value = input and 5x5 kernels of 0.25; two channels."""
  return {
      'query': _linear(np.zeros((2, 2))),
      'key': _linear(np.zeros((2, 2))),
      'value': _linear(np.eye(2)),
      'local': {
          'kernel': np.full((5, 5, 1, 2), 0.25),
          'bias': np.array([0.5, 1.0]),
      },
      'local_point': _linear([[0, 1], [2, 0]]),
      'out': _linear(np.eye(2), (10.0, 20.0)),
      'decay_logit': np.zeros((2, 1)),
      **more,
  }


def test_retention_module_on_one_pixel():
  # v = (4, 8); LCE: 5x5 -> (1.5, 3), pointwise -> (6, 1.5); sum (10, 9.5).
  # Gate logits ln 3 and 0, from the input: times 3/4 and 1/2. The output
  # projection's bias comes last.
  gate = _linear([[math.log(3) / 4, 0], [0, 0]])
  config = {'system': 'retention', 'num_heads': (1,), 'window_size': 4}
  out = oracle.attention(
      _attention_tree(gate=gate),
      np.array([4.0, 8.0]).reshape(1, 1, 1, 2),
      config,
      stage=1,
      index=1,
  )
  np.testing.assert_allclose(out.ravel(), [10 + 7.5, 20 + 4.75])


def test_swat_module_on_one_pixel():
  # SiLU gates ln 3 * 3/4 and 0: v = (3 ln 3, 0). Attention on one token is
  # sigmoid(0)^2 = 1/4. LCE of the *gated* value: (0.75 ln 3 + 0.5, 1) ->
  # pointwise (2, 0.75 ln 3 + 0.5).
  gate = _linear([[math.log(3) / 4, 0], [0, 0]])
  config = {'system': 'swat', 'num_heads': (1,), 'window_size': 4}
  out = oracle.attention(
      _attention_tree(value_gate=gate),
      np.array([4.0, 8.0]).reshape(1, 1, 1, 2),
      config,
      stage=1,
      index=0,
  )
  log3 = math.log(3)
  want = [10 + 0.75 * log3 + 2, 20 + 0.75 * log3 + 0.5]
  np.testing.assert_allclose(out.ravel(), want)


def test_odd_blocks_are_shifted_and_decay_is_a_logit():
  # A row of five, M = 4, gamma = sigmoid(0) = 1/2, no LCE.
  nothing = {'kernel': np.zeros((5, 5, 1, 2)), 'bias': np.zeros(2)}
  tree = _attention_tree(
      gate=_linear(np.zeros((2, 2))),
      local=nothing,
      out=_linear(np.eye(2) * 2),
      decay_logit=np.array([[0.0], [9.0]]),  # the second row is the height's
  )
  # The gate's sigmoid(0) times 2 is 1, so the output is the attention alone.
  config = {'system': 'retention', 'num_heads': (1,), 'window_size': 4}
  x = np.zeros((1, 1, 5, 2))
  x[0, 0, 4] = 7.0  # the last token
  even, odd, next_even = (
      oracle.attention(tree, x, config, stage=1, index=i)[0, 0, :, 1]
      for i in range(3)
  )
  np.testing.assert_allclose(even, [0, 0, 0, 0, 7])
  # Blocks 0 1 | 2 3 4; weights of token 4: 1/4 of 7/4, 1/2 of 2, 1 of 7/4.
  np.testing.assert_allclose(odd, [0, 0, 1, 7 / 4, 4])
  np.testing.assert_array_equal(even, next_even)


# -------------------------------------------------------------------- layers


def test_heads():
  # LN maps the two pixels to (1, -1) and (-1, 1), which cancel in the mean.
  params = {
      'norm': {'scale': np.array([2.0, 2.0]), 'bias': np.array([1.0, 0.0])},
      'head': _linear([[1, 10, 100], [0, 5, 7]], [0.5, 0, 0]),
  }
  x = np.array([6000.0, -6000.0, -1000.0, 1000.0]).reshape(1, 1, 2, 2)
  out = oracle.classify(params, {}, x, 'norm')
  np.testing.assert_allclose(out, [[1.5, 10, 100]])

  # BN gives ln 3 and 0, SiLU 3/4 ln 3 and 0; the head sees their mean.
  params = {
      'proj': _linear([[2.0], [0.0]], [1.0]),
      'proj_norm': {'scale': np.array([1.0]), 'bias': np.array([0.0])},
      'head': _linear([[8.0, 16.0]], [1.0, 0.0]),
  }
  statistics = {'mean': np.array([1.0]), 'var': np.array([4.0 - 1e-5])}
  x = np.array([math.log(3), 7.0, 0.0, 9.0]).reshape(1, 2, 1, 2)
  out = oracle.classify(params, {'proj_norm': statistics}, x, 'proj')
  np.testing.assert_allclose(out, [[3 * math.log(3) + 1, 6 * math.log(3)]])
