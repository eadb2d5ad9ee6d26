"""Tests bfloat16 against float32, with error bounds from counted roundings.

Rounding to bfloat16 has a relative error of at most u = 2^-8. After K roundings
with errors of independent sign, the relative error is about sqrt(K) u. Layer
norms keep later blocks from amplifying it much. The bounds below allow
3 sqrt(K) u, a third of the certain bound K u.
"""

import dataclasses
import functools

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

import gswinrmt_jax
from gswinrmt_jax import ops
from gswinrmt_jax.augment import image_ops, token_labels
from gswinrmt_jax.models import attention, block, named
from gswinrmt_jax.ops import resampling, roi_align

U = 2.0**-8

# Roundings on the longest path. Stem: 4 convolutions, biases, norms; 3 GELUs.
# Block: position convolution 3 (taps, bias, sum); attention: norm, projection
# and bias, rotation, weights and result of two passes, LCE 4, sum, gate,
# output 2: 15; FFN: norm, up 2, GELU, convolution 2, norm, sum, down 2: 10.
# LayerScale and the sums with its results are in float32. Downsampling: its
# input, convolution, bias, norm.
_STEM, _BLOCK, _DOWN = 15, 28, 4
_SIZES = {
    'widths': (8, 12),
    'depths': (1, 1),
    'num_heads': (2, 3),
    'mlp_ratios': (4.0, 4.0),
    'layer_scale': (1e-2, 1e-2),
    'decay_ranges': (4.0, 6.0),
}
_RETENTION = dataclasses.replace(
    named.MODELS['retention_compact'], widths=(8,) * 4, num_heads=(2,) * 4
)
_ROUNDINGS = _STEM + 2 * _BLOCK + _DOWN


def _relative(actual, expected):
  difference = np.asarray(actual, np.float64) - np.asarray(expected, np.float64)
  return np.linalg.norm(difference) / np.linalg.norm(expected)


def _as_at_the_start(variables):
  """Returns variables of the size of initial ones, which take 3 s to draw."""

  def start(path, x):
    *_, leaf = path
    if leaf in ('scale', 'var'):
      return np.ones_like(x)
    if leaf in ('bias', 'mean'):
      return np.zeros_like(x)
    if leaf in ('attention_scale', 'ffn_scale'):
      return np.full_like(x, 1e-2)
    if leaf == 'kernel' and x.ndim == 2:
      return np.float32(0.02) * x / x.std()
    return x

  flat = traverse_util.flatten_dict(jax.device_get(variables))
  return traverse_util.unflatten_dict({k: start(k, x) for k, x in flat.items()})


@pytest.mark.parametrize(
    'name', ['rmt_compact', 'retention_compact', 'swat_compact']
)
def test_model(name):
  """With every parameter of order one; Retention also as it starts."""
  model = gswinrmt_jax.create_model(
      name,
      num_classes=5,
      dtype='float32',
      window_size=0,
      full_stages=(2,) if name == 'rmt_compact' else (),
      **_SIZES,
  )
  x = random_variables.image((4, 64, 64, 3))
  starts = [random_variables.nested(model, x.shape)]
  if name == 'retention_compact':
    starts.append(_as_at_the_start(starts[0]))
  exact, rounded = (
      jax.jit(
          functools.partial(
              model.clone(dtype=dtype).apply, train=False, method='features'
          )
      )
      for dtype in (jnp.float32, jnp.bfloat16)
  )
  for variables in starts:
    error = _relative(
        *(run(variables, x)['stage2'] for run in (rounded, exact))
    )
    assert U / 2 < error < 3 * np.sqrt(_ROUNDINGS) * U


def test_small_branches_are_not_rounded_away():
  """LayerScale starts at 0.01, where bfloat16 drops half of the elements."""
  arch = dataclasses.replace(_RETENTION, position_conv=False)
  x = jnp.bfloat16(random_variables.image((2, 6, 7, 8)))

  def change(dtype):
    module = block.Block(arch, 0, True, dtype)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    variables = random_variables.of_shapes(shapes)
    for name in ('attention_scale', 'ffn_scale'):
      variables['params'][name] = jnp.full(8, 0.01)
    return jax.jit(module.apply)(variables, x.astype(dtype)) - jnp.float32(x)

  assert _relative(change(jnp.bfloat16), change(jnp.float32)) < 4 * U


def test_an_open_gate_still_learns():
  """In bfloat16, `y (1 - y)` of the sigmoid `y` is 0 from 6.2 on."""
  x = jnp.bfloat16(random_variables.image((2, 6, 7, 8)))

  def gradient(dtype):
    module = attention.Attention(_RETENTION, 0, False, dtype)
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)
    params = random_variables.of_shapes(shapes)['params']
    params['gate'] = {'kernel': jnp.zeros((8, 8)), 'bias': jnp.full(8, 6.5)}

    def loss(gate):
      y = module.apply({'params': params | {'gate': gate}}, x.astype(dtype))
      weights = jnp.cos(jnp.arange(y.size)).reshape(y.shape)
      return (jnp.float32(y) * weights).sum()

    return jax.jit(jax.grad(loss))(params['gate'])['bias']

  assert _relative(gradient(jnp.bfloat16), gradient(jnp.float32)) < 4 * U


_ONES = jnp.ones((1, 4, 4, 1))
_BOX = jnp.array([[0.0, 0, 2, 2]])


@pytest.mark.parametrize(
    'fun',
    [
        lambda: image_ops.choose(jnp.ones((1, 1)), jnp.zeros((1, 4), int)),
        lambda: token_labels.align(
            _ONES, _BOX, jnp.array([True]), extents=(2, 2)
        ),
        lambda: resampling.resize_bilinear(_ONES, size=(3, 3)),
        lambda: roi_align.roi_align(
            [_ONES], _BOX[None], None, strides=[1], bins=2
        ),
    ],
)
def test_what_moves_values_by_a_product_does_not_round_them(fun):
  """By default, a GPU multiplies float32 in TF32, which has 11 bits."""
  text = str(jax.make_jaxpr(fun)())
  products = text.count('dot_general[')
  assert products and text.count('Precision.HIGHEST') == 2 * products


def test_fixed_decays_and_pooled_vectors_are_not_rounded():
  arch = named.MODELS['rmt_t']
  module = attention.Attention(arch, 0, False, jnp.bfloat16)
  assert module.apply({}, method='_log_decay').dtype == jnp.float32
  model = gswinrmt_jax.create_model('rmt_t', num_classes=3, dtype='bfloat16')
  image = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  pooled, _ = jax.eval_shape(
      functools.partial(model.init_with_output, train=False, method='embed'),
      jax.random.key(0),
      image,
  )
  assert pooled.dtype == jnp.float32


@pytest.mark.parametrize(('size', 'gamma'), [(30.0, 0.5), (1.0, 1 - 1e-6)])
@pytest.mark.parametrize('form', ['softmax', 'sigmoid'])
def test_attention_with_large_scores_and_slow_decay(form, size, gamma):
  """Scores of up to 900 must not be rounded to bfloat16: 900 u exceeds 1.

  The inputs are exact in bfloat16, so four roundings remain: of the weights and
  of the result in each pass. Weights are positive, so each pass errs by at most
  2 u of the mean |V| under the same weights, which attention over |V| gives.
  """
  shape = (2, 5, 7, 3, 4)
  query, key, value = (
      random_variables.image((i, *shape))[0].astype(jnp.bfloat16)
      for i in (1, 2, 3)
  )
  query, key = query * size, key * size
  log_decay = jnp.full((2, 3), jnp.log(gamma))

  def attend(value, dtype):
    return ops.retention(
        query.astype(dtype),
        key.astype(dtype),
        value.astype(dtype),
        log_decay,
        slopes=None,
        window=4,
        shift=2,
        weigh=ops.FORMS[form],
    ).astype(jnp.float32)

  error = jnp.abs(attend(value, jnp.bfloat16) - attend(value, jnp.float32))
  bound = 4 * U * (1 + 4 * U) * attend(jnp.abs(value), jnp.float32)
  assert (error <= bound + 1e-7).all()
  assert (error > bound / 20).any()  # It does run in bfloat16.
