"""Tests the oracle against Swin's masks and values by hand.

`oracle_model_test` compares it with the package's RMT in float64, which
`released_rmt_test` compares with the authors' code.
"""

import math
import pathlib

import numpy as np
import oracle
import pytest

_DATA = pathlib.Path(__file__).parents[1] / 'fixtures'


# ------------------------------------------------------------- Swin's own masks
#
# fixtures/swin_masks.npz was generated with Swin's official code (timm agrees).
# `allowed` has packed bits of `shape` (windows, M*M, M*M), windows row by row
# after the roll. `region` is the region of each token in original coordinates.
# `allowed_w` and `allowed_h` follow the same rule along one axis.


@pytest.fixture(scope='module')
def swin_masks():
  with np.load(_DATA / 'swin_masks.npz') as masks:
    return dict(masks)


@pytest.mark.parametrize(
    'height,width,window,shift',
    # Those of the file's masks whose shift is half the window.
    [(8, 8, 4, 2), (14, 14, 7, 3), (14, 21, 7, 3), (12, 20, 4, 2)],
)
def test_tokens_mix_with_their_region(swin_masks, height, width, window, shift):
  """With zero scores and no decay, attention is the mean of the region."""
  region = swin_masks[f'mask/H{height}_W{width}_M{window}_s{shift}/region']
  value = np.random.default_rng(0).normal(size=(2, height, width, 1, 3))
  out = _mix('rmt', value, np.zeros((2, 1)), window, shifted=True)
  for i in range(region.max() + 1):
    want = value[:, region == i].mean(1, keepdims=True)
    assert np.abs(out[:, region == i] - want).max() < 1e-12


# -------------------------------------------------- windows, worked by hand


def _mix(system, value, log_decay, window=None, shifted=False):
  """Applies windowed attention with zero queries and keys."""
  zero = np.zeros((*value.shape[:4], 2))
  return oracle.attend_windows(
      system, zero, zero, value, np.asarray(log_decay), window, shifted
  )


def test_region_ids_of_a_padded_map():
  # Seven columns and a padded one, M = 4, rolled by 2: 2 3 4 5 | 6 p 0 1.
  # The two rows are one window: no shift, one region.
  ids = oracle.swin_regions(2, 8, (2, 4), (0, 2))
  np.testing.assert_array_equal(ids, [[0, 0, 0, 0, 1, 1, 2, 2]] * 2)
  # Five rows and a padded one, M = 3, rolled by 1: 1 2 3 | 4 p 0.
  ids = oracle.swin_regions(6, 8, (3, 4), (1, 2))
  np.testing.assert_array_equal(ids[:, 0], [0, 0, 0, 3, 3, 6])
  np.testing.assert_array_equal(ids[5], [6, 6, 6, 6, 7, 7, 8, 8])


@pytest.mark.parametrize(
    'extent,window,shifted,blocks',
    [
        (7, 4, False, [[0, 1, 2, 3], [4, 5, 6]]),
        (7, 4, True, [[0, 1], [2, 3, 4, 5], [6]]),
        (5, 4, True, [[0, 1], [2, 3, 4]]),  # a region of padding alone
        (5, 3, True, [[0], [1, 2, 3], [4]]),
        (6, 5, True, [[0, 1], [2, 3, 4, 5]]),
        (9, 4, False, [[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        (4, 4, True, [[0, 1, 2, 3]]),
        (3, 4, True, [[0, 1, 2]]),
    ],
)
@pytest.mark.parametrize('axis', [1, 2])
def test_blocks_of_an_axis(extent, window, shifted, blocks, axis):
  """With zero scores and no decay, a token becomes the mean of its block."""
  value = np.arange(extent, dtype=float) ** 2
  want = value.copy()
  for block in blocks:
    want[block] = value[block].mean()
  shape = [1, 1, 1, 1, 1]
  shape[axis] = extent
  out = _mix('rmt', value.reshape(shape), [[0.0]] * 2, window, shifted)
  np.testing.assert_allclose(out.ravel(), want, rtol=1e-12)


def test_softmax_scores_by_hand():
  # q k = 2 ln 3 and 0, four channels: scores ln 3 and 0; gamma = 1/2.
  query = np.zeros((1, 2, 1, 4))
  query[..., 0] = 2 * math.log(3)
  key = np.array([1.0, 0, 0, 0, 0, 0, 0, 0]).reshape(1, 2, 1, 4)
  value = np.eye(2)[None, :, None]
  out = oracle.softmax_line(
      query,
      key,
      value,
      np.ones((2, 2), bool),
      np.array([[0, 1], [1, 0]]),
      np.log([0.5]),
  )
  want = [[6 / 7, 1 / 7], [3 / 5, 2 / 5]]
  np.testing.assert_allclose(out[0, :, 0], want, rtol=1e-12)


def test_a_query_without_a_key_gets_zeros():
  scores = np.array([[0.0, 1e30, 5.0], [2.0, 3.0, 7.0]])
  allowed = np.array([[False] * 3, [True, False, False]])
  out = oracle.masked_softmax(scores, allowed)
  np.testing.assert_array_equal(out, [[0, 0, 0], [1, 0, 0]])


# -------------------------------------------------------- positions and rates


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


# ------------------------------------------------------------------------ SWAT


def test_slope_times_query_minus_key():
  # Two heads, -1/2 and +1/2; query 2 sees key 0 at distance +2.
  value = np.zeros((1, 1, 3, 2, 1))
  value[:, :, 0] = 1.0
  out = _mix('swat', value, np.zeros((2, 2)))[0, 0, :, :, 0]
  down, up = 1 / (1 + math.e), 1 / (1 + 1 / math.e)
  np.testing.assert_allclose(out[2], [down / 6, up / 6])
  np.testing.assert_allclose(out[0], [1 / 12, 1 / 12])
  # The other way round: query 0 sees key 2 at distance -2.
  out = _mix('swat', value[:, :, ::-1], np.zeros((2, 2)))[0, 0, :, :, 0]
  np.testing.assert_allclose(out[0], [up / 6, down / 6])


def test_window_size_divides_also_in_partial_regions():
  # Of five columns, M = 4, the last is alone but still divided by four.
  out = _mix('swat', np.ones((1, 1, 5, 1, 1)), np.zeros((2, 1)), 4)
  want = [1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 16]  # n sigmoid(0) / 4 sigmoid(0)
  np.testing.assert_allclose(out.ravel(), want)
  out = _mix('swat', np.ones((1, 1, 5, 1, 1)), np.zeros((2, 1)), 4, True)
  np.testing.assert_allclose(out.ravel(), np.array([2, 2, 3, 3, 3]) / 16)


def test_swat_rotates_by_the_index_along_each_axis():
  # Two channels, one radian per step. Only the last token of both axes has a
  # value; its weight at token 0 is sigmoid(cos(distance)) / w_s per axis.
  ones = np.zeros((1, 3, 4, 1, 2))
  ones[..., 0] = 1.0
  value = np.zeros((1, 3, 4, 1, 1))
  value[0, 2, 3] = 1.0
  out = oracle.attend_windows('swat', ones, ones, value, np.zeros((2, 1)))
  across, down = (1 / (1 + math.exp(-math.cos(x))) for x in (3, 2))
  np.testing.assert_allclose(out[0, 0, 0].ravel(), across / 4 * down / 3)


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
