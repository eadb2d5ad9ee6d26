"""The dense head: its logits, their share in the model's, and box mixing."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

import gswinrmt_jax
from gswinrmt_jax.models import layers

K = 5
SHAPE = (3, 18, 26, 3)  # 5 x 7 behind the stem, 3 x 4 at the end: rounded up
BOX = np.array(
    [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]], bool
)  # reaches the ends


def _model(**overrides):
  fields = {
      'widths': (8, 12),
      'depths': (1, 1),
      'num_heads': (1, 2),
      'mlp_ratios': (2.0, 2.0),
      'decay_ranges': (4.0, 6.0),
      'layer_scale': (0.0, 0.0),
      'full_stages': (2,),
      'projection': 11,
      'drop_path_rate': 0.0,
  }
  return gswinrmt_jax.create_model(
      'rmt_s_tl', **{'num_classes': K} | fields | overrides
  )


def _mix_behind_the_stem(stem):
  """Each image takes the inside of its neighbour's, a square of 2 x 2 each."""
  mixed = stem.copy()
  for i, y, x in np.ndindex(*stem.shape[:3]):
    if BOX[y // 2, x // 2]:
      mixed[i, y, x] = stem[{0: 1, 1: 0, 2: 2}[i], y, x]
  return mixed


@pytest.fixture(scope='module')
def outputs():
  """What the model gives by itself, and with its stem's output replaced."""
  model, image = _model(), random_variables.image(SHAPE)
  variables = random_variables.nested(model, SHAPE)

  @jax.jit
  def stem(variables):
    return layers.Stem(8, jnp.float32).apply(
        {name: tree['stem'] for name, tree in variables.items()},
        image,
        train=False,
    )

  @jax.jit
  def run(variables, replaced):
    def replace(next_function, args, kwargs, context):
      if isinstance(context.module, layers.Stem):
        return replaced
      return next_function(*args, **kwargs)

    apply = functools.partial(model.apply, variables, image, train=False)
    both = functools.partial(apply, method='class_and_dense_logits')
    with nn.intercept_methods(replace):
      by_hand = both()
    last = apply(method='features')['stage2']
    plain = _model(dense_head=False)
    return {
        'last': last,
        'logits': apply(),
        'class': plain.apply(variables, image, train=False),
        'both': both(),
        'mixed': both(box=jnp.asarray(BOX)),
        'by_hand': by_hand,
    }

  mixed = _mix_behind_the_stem(np.asarray(stem(variables)))
  return jax.device_get((variables['params'], run(variables, mixed)))


def _dense(params, last):
  """One linear map of each position, in loops."""
  kernel, bias = params['dense_head']['kernel'], params['dense_head']['bias']
  dense = np.zeros((*last.shape[:3], K))
  for i, y, x, k in np.ndindex(*dense.shape):
    dense[i, y, x, k] = np.float64(last[i, y, x]) @ kernel[:, k] + bias[k]
  return dense


def test_dense_logits_are_a_linear_map_of_the_last_stage(outputs):
  params, found = outputs
  logits, dense = found['both']
  assert dense.dtype == np.float32 and dense.shape == (3, 3, 4, K)
  np.testing.assert_allclose(dense, _dense(params, found['last']), atol=2e-5)
  np.testing.assert_allclose(logits, found['class'], atol=2e-5)


def test_logits_are_those_of_the_class_and_half_the_largest(outputs):
  """Of each class over all positions, rows and columns."""
  params, found = outputs
  dense = _dense(params, found['last'])
  expected = np.zeros((3, K))
  for i, k in np.ndindex(3, K):
    expected[i, k] = found['class'][i, k] + 0.5 * max(
        dense[i, y, x, k] for y in range(3) for x in range(4)
    )
  np.testing.assert_allclose(found['logits'], expected, atol=4e-5)


def test_box_mixing_swaps_behind_the_stem_and_swaps_back(outputs):
  _, found = outputs
  logits, dense = found['mixed']
  by_hand, crossed = found['by_hand']  # of the mixed map, before un-mixing
  np.testing.assert_allclose(logits, by_hand, atol=2e-5)
  expected = np.zeros_like(crossed)
  for i, y, x in np.ndindex(*crossed.shape[:3]):
    source = {0: 1, 1: 0, 2: 2}[i] if BOX[y, x] else i
    expected[i, y, x] = crossed[source, y, x]
  np.testing.assert_allclose(dense, expected, atol=2e-5)
  # What was left out would be seen.
  assert np.abs(crossed - expected).max() > 0.01
  assert np.abs(dense - found['both'][1]).max() > 0.01


def test_shapes_of_the_released_size():
  """A token of the last map is 8 x 8 behind the stem; bfloat16 ends there."""
  model = gswinrmt_jax.create_model(
      'rmt_s_tl', num_classes=1000, dtype='bfloat16'
  )
  image = jax.ShapeDtypeStruct((2, 224, 200, 3), jnp.float32)
  box = jax.ShapeDtypeStruct((7, 7), jnp.bool_)

  def run(key, image, box):
    variables = model.init(key, image, train=False)
    return model.apply(
        variables,
        image,
        train=True,
        box=box,
        method='class_and_dense_logits',
        mutable=['batch_stats'],
        rngs={'dropout': key},
    )[0]

  logits, dense = jax.eval_shape(run, jax.random.key(0), image, box)
  assert (logits.shape, logits.dtype) == ((2, 1000), jnp.float32)
  assert (dense.shape, dense.dtype) == ((2, 7, 7, 1000), jnp.float32)


@pytest.mark.parametrize('change', [{'dense_head': False}, {'num_classes': 0}])
def test_without_a_dense_head_there_are_no_dense_logits(change):
  model = _model(**change)
  image = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
  variables = jax.eval_shape(
      functools.partial(model.init, train=False), jax.random.key(0), image
  )
  assert 'dense_head' not in variables['params']
  with pytest.raises(ValueError, match='set dense_head=True'):
    jax.eval_shape(
        functools.partial(
            model.apply, train=False, method='class_and_dense_logits'
        ),
        variables,
        image,
    )
