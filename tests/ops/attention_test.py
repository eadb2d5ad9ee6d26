"""Tests the forms of attention against float64 loops and values by hand."""

import functools
import itertools

import cyclic_windows
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import loops
import numpy as np
import pytest

from gswinrmt_jax import ops
from gswinrmt_jax.ops import attention, positions

# All sizes differ, so that swapped axes fail.
B, H, W, N, D = 2, 5, 7, 3, 4
RATES = np.array([[0.5, 0.8, 0.95], [0.6, 0.7, 0.9]])  # width, height
LOG_DECAY = np.float32(np.log(RATES))
SLOPES = np.float32([-0.5, 0.5, 0.25])


def _maps(seed, height=H, width=W, dtype=np.float32):
  rng = np.random.default_rng(seed)
  return tuple(
      jnp.asarray(rng.normal(size=(B, height, width, N, D)), dtype)
      for _ in range(3)
  )


@pytest.fixture(params=[False, True], ids=['lines', 'blocks'])
def blocks_of_windows(request, monkeypatch):
  """Cuts short lines, too, into blocks of one window, or leaves them whole."""
  if request.param:
    monkeypatch.setattr(attention, '_BLOCK_TOKENS', 1)
    monkeypatch.setattr(attention, '_LEAST_BLOCKS', 1)
    ops.retention.clear_cache()
  yield
  if request.param:
    ops.retention.clear_cache()


# Of scores, decays and the window: equations 3 and 7, and RMT's equation 3.
_WEIGHTS = {
    'softmax': lambda s, decay, _: np.exp(s) * decay / (np.exp(s) @ decay),
    'sigmoid': lambda s, decay, size: decay / (1 + np.exp(-s)) / size,
    'linear': lambda s, decay, _: s * decay,
}


# Scores and windows do not depend on the form.
_OPTIONS = [
    ('sigmoid', {'window': 3}),
    ('sigmoid', {'window': 4, 'shift': 2}),
    ('sigmoid', {'slopes': SLOPES}),
    ('sigmoid', {'slopes': SLOPES, 'absolute': True, 'window': 4}),
    ('sigmoid', {'scaled': False}),
]


@pytest.mark.parametrize(
    ('form', 'options'),
    [
        *itertools.product(
            ops.FORMS, ({}, {'window': 3, 'shift': 1}, {'log_decay': None})
        ),
        *_OPTIONS,
    ],
    ids=str,
)
def test_every_form_matches_loops(form, options):
  """Rows, then columns, of whole lines and of (shifted) windows."""
  options = {'log_decay': LOG_DECAY} | options
  no_decay = options['log_decay'] is None

  def line(query, key, value, head, axis, size):
    out = np.zeros_like(value)
    rate = 1.0 if no_decay else RATES[axis, head]
    slope = options.get('slopes', np.zeros(N))[head]
    for i in range(len(query)):
      ahead = i - np.arange(len(key))
      score = key @ query[i] * (0.5 if options.get('scaled', True) else 1)
      score += slope * (abs(ahead) if options.get('absolute') else ahead)
      out[i] = _WEIGHTS[form](score, rate ** abs(ahead), size) @ value
    return out

  maps = _maps(0)
  expected = loops.axial(
      line,
      *(np.float64(m) for m in maps),
      options.get('window'),
      options.get('shift', 0),
  )
  actual = ops.retention(*maps, **options, weigh=ops.FORMS[form])
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


# Factor of the pair of tokens of a map three wide.
def _manhattan(rate, i, j, row, column):
  return rate ** (abs(i - row) + abs(j - column))


def _causal(rate, i, j, row, column):
  ahead = (3 * i + j) - (3 * row + column)
  return rate**ahead if ahead >= 0 else 0.0


@pytest.mark.parametrize('form', ops.FULL_FORMS)
@pytest.mark.parametrize('options', [{}, {'scaled': False}, {'decay': False}])
def test_all_pairs_match_loops(form, options):
  """On a map of two rows of three tokens, counted row by row."""
  maps = _maps(2, height=2, width=3)
  query, key, value = (np.float64(m) for m in maps)
  scale = 0.5 if options.get('scaled', True) else 1
  decay = options.get('decay', True)
  factor = _causal if form == 'causal' else _manhattan
  mix = _WEIGHTS['linear' if form == 'causal' else form]
  expected = np.zeros_like(value)
  for b, i, j, n in np.ndindex(value.shape[:4]):
    rate = RATES[0, n] if decay else 1.0
    score, decays = np.zeros(6), np.zeros(6)
    for row, column in np.ndindex(2, 3):
      token = 3 * row + column
      score[token] = query[b, i, j, n] @ key[b, row, column, n] * scale
      decays[token] = factor(rate, i, j, row, column)
    weights = mix(score, decays, None)
    expected[b, i, j, n] = weights @ value[b, :, :, n].reshape(6, D)
  weigh, distance = ops.FULL_FORMS[form]
  actual = ops.full_retention(
      *maps,
      LOG_DECAY[0] if decay else None,
      scaled=scale != 1,
      weigh=weigh,
      distance=distance,
  )
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-5)


def test_causal_decay_over_a_long_map_stays_finite():
  """gamma^-(t - T) of later tokens would overflow: 0.25^-99 is over 1e38."""
  maps = _maps(4, height=4, width=25)
  weigh, distance = ops.FULL_FORMS['causal']

  def loss(log_decay):
    return ops.full_retention(
        *maps, log_decay, weigh=weigh, distance=distance
    ).sum()

  value, grad = jax.value_and_grad(loss)(jnp.log(jnp.full((N,), 0.25)))
  assert np.isfinite(value) and np.isfinite(grad).all()


_HALVES = np.array([[1, 1 / 2, 1 / 4], [1 / 2, 1, 1 / 2], [1 / 4, 1 / 2, 1]])


@pytest.mark.parametrize(
    ('attend', 'query', 'expected'),
    [
        # Rows of the softmax sum to 1; sigmoid(0) / 3 is 1 / 6.
        (ops.retention, 0, _HALVES / _HALVES.sum(1, keepdims=True)),
        # The height pass over a single row multiplies by sigmoid(0) / 1, or by
        # the score, 1.
        (ops.swat, 0, _HALVES / 6 / 2),
        (
            functools.partial(
                ops.retention, weigh=ops.linear_weights, scaled=False
            ),
            1,
            _HALVES,
        ),
    ],
)
def test_weights_by_hand(attend, query, expected):
  """Equal scores and rate 1/2 in a row of three."""
  unit = jnp.zeros((1, 1, 3, 1, 3)).at[..., 0].set(query)
  value = jnp.eye(3)[None, None, :, None]
  out = attend(unit, unit, value, jnp.full((2, 1), jnp.log(0.5)))
  np.testing.assert_allclose(out[0, 0, :, 0], expected, rtol=1e-6)


def _swat_weights(slopes, length, **options):
  zeros = jnp.zeros((1, 1, length, 1, 2))
  across, _ = ops.axial_weights(
      zeros, zeros, None, slopes, weigh=ops.sigmoid_weights, **options
  )
  return across[0, 0, 0]


def test_a_positive_slope_prefers_keys_on_the_left():
  """sigmoid(slope (i - j)) with slope ln 3: 3/4 to the left, 1/4 right."""
  slope = jnp.array([np.log(3.0)], jnp.float32)
  np.testing.assert_allclose(
      _swat_weights(slope, 2) * 2, [[1 / 2, 1 / 4], [3 / 4, 1 / 2]], rtol=1e-6
  )


def test_partial_regions_divide_by_the_whole_window(blocks_of_windows):
  """Five columns, window 4, shift 2: regions of 2 and 3, divided by 4."""
  expected = np.zeros((5, 5))
  expected[:2, :2] = expected[2:, 2:] = 1 / 8
  np.testing.assert_array_equal(
      _swat_weights(None, 5, window=4, shift=2), expected
  )


@pytest.mark.parametrize('form', ['softmax', 'sigmoid'])
def test_extreme_scores_stay_finite(form, blocks_of_windows):
  maps = [m * 300 for m in _maps(9)]
  theta = jnp.array([[40.0, -40.0, 0.0]] * 2)  # gamma near 1 and near 0

  def loss(theta, *maps):
    log_decay = jax.nn.log_sigmoid(theta)
    options = {'window': 3, 'shift': 1, 'weigh': ops.FORMS[form]}
    return ops.retention(*maps, log_decay, SLOPES, **options).sum()

  value, grads = jax.jit(jax.value_and_grad(loss, range(4)))(theta, *maps)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize(
    ('height', 'width', 'window', 'shift', 'form'),
    [
        (1, 1, 3, 1, 'sigmoid'),
        (9, 4, 5, 2, 'sigmoid'),  # whole lines
        (57, 5, 14, 7, 'sigmoid'),  # five windows of a column, whole rows
        # Seven windows of a row, padded on both sides.
        (3, 60, 13, 3, 'sigmoid'),
        # Blocks of two windows, in columns.
        (49, 28, 7, 3, 'sigmoid'),
        # Of four, the last of which are all padding.
        (2, 65, 4, 1, 'sigmoid'),
        (2, 65, 4, 1, 'softmax'),
        # Padded behind only.
        (4, 50, 12, 0, 'sigmoid'),
        (4, 50, 12, 0, 'linear'),
    ],
)
def test_windows_are_those_of_the_cyclic_reference(
    height, width, window, shift, form
):
  """To 1e-12 in float64, and finite, forward and backward.

  How lines are cut does not depend on the form. The sigmoid takes all that a
  form is given, and masks as the linear form does; the softmax has a mask of
  its own, for which whole blocks of padding matter.
  """
  with jax.enable_x64(True):
    arrays = *_maps(0, height, width, np.float64), jnp.log(RATES), SLOPES
    arrays = [jnp.asarray(a, float) for a in arrays]
    options = {'weigh': ops.FORMS[form], 'window': window, 'shift': shift}

    def run(attend):
      def loss(*arrays):
        out = attend(*arrays, **options)
        return jnp.sum(jnp.sin(out)), out

      (_, out), grads = jax.value_and_grad(loss, range(5), has_aux=True)(
          *arrays
      )
      return (out, *grads)

    both = ops.retention, cyclic_windows.cyclic_retention
    runs = jax.jit(lambda: tuple(map(run, both)))()
  for ours, other in zip(*runs, strict=True):
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, other, rtol=1e-12, atol=1e-12)


@hypothesis.given(
    extent=st.integers(1, 200),
    window=st.integers(1, 40),
    shift=st.integers(0, 39),
)
def test_blocks_allow_the_pairs_of_a_window(extent, window, shift):
  cut = attention.axis_blocks(extent, window, shift)
  tokens = cut.count * cut.length
  allowed = np.zeros((cut.count, cut.length, cut.count, cut.length), bool)
  for block in range(cut.count):
    mask = np.ones((cut.length,) * 2) if cut.mask is None else cut.mask[0, 0]
    allowed[block, :, block] = mask.reshape(-1, cut.length, cut.length)[
        block if cut.mask is not None and len(mask) > 1 else 0
    ]
  allowed = allowed.reshape(tokens, tokens)
  line = slice(cut.front, cut.front + extent)
  index, size = loops.blocks(extent, window, shift)
  np.testing.assert_array_equal(
      allowed[line, line], index[:, None] == index[None]
  )
  assert allowed[line].sum() == allowed[line, line].sum()  # No key is padding.
  assert cut.size == size


@pytest.mark.parametrize(
    ('extent', 'window', 'shift', 'expected'),
    [
        (56, 14, 0, (4, 14, 0)),
        (56, 14, 7, (5, 14, 7)),
        (57, 14, 3, (5, 14, 11)),
        (56, 7, 0, (4, 14, 0)),  # blocks of two windows
        (28, 14, 7, (1, 28, 0)),  # fewer than four blocks: the whole line
        (16, 4, 2, (1, 16, 0)),
        (64, None, 0, (1, 64, 0)),
    ],
)
def test_blocks_follow_from_the_sizes(extent, window, shift, expected):
  """Count, length and front; as in the table of times in the module."""
  assert attention.axis_blocks(extent, window, shift)[:3] == expected


def test_weights_give_the_output():
  query, key, value = _maps(0)
  tables = LOG_DECAY, SLOPES
  options = {'window': 3, 'shift': 1, 'weigh': ops.sigmoid_weights}
  across, down = ops.axial_weights(query, key, *tables, **options)
  out = jnp.einsum('bhnwW,bhWnd->bhwnd', across, value)
  out = jnp.einsum('bwnhH,bHwnd->bhwnd', down, out)
  np.testing.assert_allclose(
      out, ops.retention(query, key, value, *tables, **options), atol=2e-6
  )
  full = ops.full_weights(query, key, LOG_DECAY[0])
  out = jnp.einsum('bntT,bTnd->btnd', full, value.reshape(B, H * W, N, D))
  np.testing.assert_allclose(
      out.reshape(value.shape),
      ops.full_retention(query, key, value, LOG_DECAY[0]),
      atol=2e-6,
  )


def test_the_size_is_that_of_each_image():
  """Weights of 1 / size give the mean of the values that are no padding."""
  value = _maps(0)[0]
  extents = jnp.array([[2, 4], [5, 7]])

  def weigh(scores, decay, mask, size):
    assert decay is None
    return jnp.where(mask, jnp.ones_like(scores) / size, 0)

  for attend in (ops.full_retention, ops.retention):
    out = attend(value, value, value, None, extents=extents, weigh=weigh)
    for image, (height, width) in enumerate(extents):
      np.testing.assert_allclose(
          out[image, 0, 0],
          value[image, :height, :width].mean((0, 1)),
          rtol=1e-4,
          atol=1e-6,
      )


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'window': 0}, 'window=0 must be at least 1'),
        ({'window': -3}, 'window=-3 must be at least 1'),
        ({'log_decay': np.zeros(N)}, r'log_decay must be of shape \(2, 3\)'),
        ({'log_decay': np.zeros((2, 1))}, r'not \(2, 1\)'),
        ({'slopes': np.zeros((1, N))}, r'slopes must be of shape \(3,\)'),
        ({'key': np.zeros((B, W, H, N, D))}, 'maps .* of one shape'),
    ],
)
def test_arguments_that_would_give_nonsense_are_refused(
    change, message, as_users_run
):
  """Windows of 0 would give NaN, decays of other shapes would broadcast."""
  arguments = dict(zip(('query', 'key', 'value'), _maps(0), strict=True))
  arguments |= {'log_decay': None, 'slopes': None, 'window': 3, **change}
  with pytest.raises(ValueError, match=message):
    ops.retention(**arguments)


def test_a_batch_of_any_size_is_exported(blocks_of_windows):
  maps = _maps(0)

  @jax.jit
  def program(*maps):
    return ops.retention(*maps, None, window=3, shift=1)

  (batch,) = jax.export.symbolic_shape('b')
  shape = jax.ShapeDtypeStruct((batch, *maps[0].shape[1:]), jnp.float32)
  exported = jax.export.export(program)(shape, shape, shape)
  np.testing.assert_allclose(
      exported.call(*maps), program(*maps), rtol=0, atol=1e-6
  )


def test_defaults_are_those_of_the_papers():
  rng = np.random.default_rng(0)
  maps = [jnp.asarray(rng.normal(size=(2, 5, 7, 3, 4))) for _ in range(3)]
  decay = jnp.log(jnp.array([[0.5, 0.8, 0.95], [0.6, 0.7, 0.9]]))
  np.testing.assert_array_equal(
      ops.swat(*maps, decay),
      ops.retention(*maps, decay, scaled=False, weigh=ops.sigmoid_weights),
  )
  np.testing.assert_array_equal(
      ops.full_retention(*maps, decay[0]),
      ops.full_retention(
          *maps,
          decay[0],
          scaled=True,
          weigh=ops.softmax_weights,
          distance=positions.manhattan,
      ),
  )
