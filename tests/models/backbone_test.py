"""Tests the whole model: feature maps, dense head, remat and gradients."""

import collections
import functools
import math
from unittest import mock

import chex
from flax import linen as nn
from flax import traverse_util
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

import gswinrmt_jax
from gswinrmt_jax.distributed import compilation
from gswinrmt_jax.models import architecture, backbone, block, factory

_TINY = {
    'widths': (8, 16, 24, 32),
    'depths': (2, 1, 2, 1),
    'num_heads': (1, 2, 3, 4),
    'window_size': 3,
}
# Two stages of one block, for tests of one component.
_TWO_STAGES = {
    'widths': (8, 16),
    'depths': (1, 1),
    'num_heads': (1, 2),
    'mlp_ratios': (4.0, 4.0),
    'layer_scale': (1e-2, 1e-2),
    'decay_ranges': (4.0, 6.0),
}


def _tiny(name, **overrides):
  fields = _TINY | overrides
  if name.startswith('rmt'):
    fields['window_size'] = 0
  return gswinrmt_jax.create_model(
      name, num_classes=5, **{'dtype': 'float32'} | fields
  )


def _shapes(model, size):
  """Returns those of the maps, the logits and the variables, traced once."""
  start = functools.partial(
      model.init_with_output,
      train=False,
      capture_intermediates=lambda _, method: method == 'features',
  )
  x = jax.ShapeDtypeStruct((2, *size, 3), jnp.float32)
  logits, variables = jax.eval_shape(start, jax.random.key(0), x)
  (maps,) = variables.pop('intermediates')['features']
  return maps, logits, variables


@pytest.mark.parametrize(
    ('name', 'size', 'strides'),
    [
        ('retention_large', (75, 106), (4, 8, 16, 32)),
        ('rmt_deit_s', (75, 106), (16,)),
    ],
)
def test_features_have_the_strides_and_widths(name, size, strides):
  """For full widths, by tracing shapes alone; extents round up.

  With LayerScale and without; of other models: `oracle_model_test`.
  """
  model = gswinrmt_jax.create_model(
      name, num_classes=11, dtype='bfloat16', depths=(1,) * len(strides)
  )
  maps, logits, _ = _shapes(model, size)
  assert len(maps) == len(strides)
  for stage, stride in enumerate(strides):
    feature = maps[f'stage{stage + 1}']
    extents = (-(-extent // stride) for extent in size)
    assert feature.shape == (2, *extents, model.arch.widths[stage])
    scaled = model.arch.layer_scale[stage]
    assert feature.dtype == (jnp.float32 if scaled else jnp.bfloat16)
  assert (logits.shape, logits.dtype) == ((2, 11), jnp.float32)


def test_strides_of_the_stem_change_maps_but_no_parameter():
  plain, fine = (
      _tiny('retention_compact', depths=(1, 1, 1, 1), **fields)
      for fields in ({}, {'stem_strides': (1, 1, 2, 1)})
  )
  maps, _, variables = _shapes(fine, (32, 31))
  for stage, (rows, columns) in enumerate(
      [(16, 16), (8, 8), (4, 4), (2, 2)], start=1
  ):
    width = fine.arch.widths[stage - 1]
    assert maps[f'stage{stage}'].shape == (2, rows, columns, width)
  # The smallest allowed image depends on the strides.
  with pytest.raises(ValueError, match='at least 16x16'):
    _shapes(fine, (15, 16))
  assert variables == factory.variable_shapes(plain, (32, 32, 3))


# What has linear layers: their kernels and biases are 18 in each of two blocks,
# 6 in the head, and the kernel of the merging.
_LINEAR = {
    'swiglu': True,
    'downsample': 'merge',
    'head': 'proj',
    'projection': 40,
    'dense_head': True,
}


@pytest.mark.parametrize('start', ['normal', 'uniform'])
def test_every_linear_layer_starts_as_the_field_says(start):
  """PyTorch's default is uniform within 1 / sqrt(fan_in), biases included."""
  # Few sizes of draws, and few shapes: each is compiled.
  sizes = _TWO_STAGES | {'widths': (16, 16), 'stem': 'patch'}
  model = _tiny('retention_compact', **_LINEAR, **sizes, linear_start=start)
  params = jax.device_get(
      gswinrmt_jax.init(model, jax.random.key(0), (32, 32))['params']
  )
  found = 0
  for path, leaf in traverse_util.flatten_dict(params).items():
    kernel = params
    for name in path[:-1]:
      kernel = kernel[name]
    kernel = kernel.get('kernel')
    if path[-1] not in ('kernel', 'bias') or kernel is None or kernel.ndim != 2:
      continue
    found += 1
    # LCE's 1x1 convolution starts as a convolution for either value.
    if start == 'uniform' or path[-2] == 'local_point':
      bound = 1 / math.sqrt(len(kernel))
      assert np.abs(leaf).max() <= bound, path
      deviation = bound / math.sqrt(3)
    else:
      deviation = 0.02 if path[-1] == 'kernel' else 0
    if path[-1] == 'kernel':
      np.testing.assert_allclose(leaf.std(), deviation, rtol=0.25)
    else:
      assert (np.abs(leaf).max() > 0) == (deviation > 0), path
  assert found == 2 * 18 + 6 + 1


def test_stochastic_depth_grows_through_all_stages():
  """Block i of L drops its branches with probability `p_max i / (L - 1)`."""
  rates = []

  def look(next_function, args, kwargs, context):
    module = context.module
    if isinstance(module, block.Block) and context.method_name == '__call__':
      rates.append(module.drop_rate)
    return next_function(*args, **kwargs)

  model = _tiny('retention_compact', drop_path_rate=0.5)
  x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  keys = {name: jax.random.key(0) for name in ('params', 'dropout')}
  start = functools.partial(model.init, train=True)
  with nn.intercept_methods(look):
    jax.eval_shape(start, keys, x)
  np.testing.assert_allclose(rates, np.arange(6) / 10)


@pytest.mark.parametrize(
    ('name', 'shape', 'message'),
    [
        (
            'retention_compact',
            (31, 64, 3),
            r'at least 32x32, .* not \(1, 31, 64',
        ),
        ('retention_compact', (32, 32, 1), r'width, 3\], not \(1, 32, 32, 1\)'),
        ('rmt_swin_t', (64, 31, 3), r'at least 32x32, .* not \(1, 64, 31'),
        ('rmt_deit_s', (15, 16, 3), r'at least 16x16, .* not \(1, 15, 16'),
    ],
)
def test_images_that_do_not_fit_are_refused(name, shape, message):
  model = gswinrmt_jax.create_model(name, num_classes=5)
  x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(
        functools.partial(model.init, train=False), jax.random.key(0), x
    )


def test_forward_over_reverse():
  """A Hessian-vector product; a missing derivative would fail in lowering."""
  x = random_variables.image((1, 16, 16, 3))
  one = {name: sizes[:1] for name, sizes in _TWO_STAGES.items()}
  model = _tiny('retention_compact', **one)
  variables = random_variables.nested(model, x.shape)
  gradient = jax.grad(lambda x: model.apply(variables, x, train=False).sum())
  product = jax.jit(lambda x: jax.jvp(gradient, (x,), (x,))[1]).lower(x)
  assert product.out_info.shape == x.shape


@jax.enable_x64(True)
def test_a_backbone_without_a_head_has_normalised_features():
  """LN has an epsilon of 1e-5; the next stage reads the map before LN."""
  fields = {'dtype': np.float64, 'full_stages': (2,), **_TWO_STAGES}
  shape = (2, 40, 56, 3)
  model = gswinrmt_jax.create_model(
      'rmt_t', num_classes=0, feature_norm=True, **fields
  )
  plain = gswinrmt_jax.create_model('rmt_t', num_classes=0, **fields)
  variables = random_variables.nested(model, shape)
  image = random_variables.image(shape).astype(float)

  @jax.jit
  def run(variables):
    return (
        model.apply(variables, image, train=False),
        model.apply(variables, image, train=False, method='features'),
        plain.apply(variables, image, train=False, method='features'),
    )

  out, normalised, raw = run(variables)
  for stage in (1, 2):
    x = np.asarray(raw[f'stage{stage}'])
    affine = variables['params'][f'feature_norm{stage}']
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = (x - x.mean(-1, keepdims=True)) / deviation
    x = x * np.asarray(affine['scale']) + np.asarray(affine['bias'])
    np.testing.assert_allclose(
        normalised[f'stage{stage}'], x, rtol=0, atol=1e-9
    )
  np.testing.assert_allclose(out, x.mean((1, 2)), rtol=0, atol=1e-9)


def _equations(jaxpr):
  """Yields all equations, those of inner programs once per call."""
  for equation in jaxpr.eqns:
    yield equation
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from _equations(inner)


def _shared(jaxpr):
  """Returns, by name, the numbers of inner programs and of their calls."""
  called = collections.defaultdict(list)
  for equation in _equations(jaxpr):
    if equation.primitive.name in ('jit', 'pjit'):
      called[equation.params['name']].append(id(equation.params['jaxpr']))
  return {name: (len({*ids}), len(ids)) for name, ids in called.items()}


def test_blocks_of_a_stage_share_their_programs():
  """More blocks only add calls, in the forward and the backward pass."""
  found = {}
  for depth in (1, 3):
    arch = architecture.Architecture(
        widths=(8,) * 4, num_heads=(2,) * 4, depths=(depth,) * 4, shift=False
    )
    stage = backbone.Stage(arch, 0, jnp.float32)
    x = jnp.ones((2, 6, 6, 8))
    init = functools.partial(stage.init, train=False)
    variables = jax.eval_shape(init, jax.random.key(0), x)

    def loss(variables, x, stage=stage):
      return stage.apply(variables, x, train=False).sum()

    program = jax.make_jaxpr(jax.grad(loss, (0, 1)))(variables, x)
    found[depth] = _shared(program.jaxpr)
  equations = {'depthwise_conv', 'layer_norm', 'dense', 'retention', 'gelu'}
  assert equations <= {*found[1]}
  for name in equations:
    kept, calls = found[1][name]
    assert found[3][name] == (kept, 3 * calls), name


# -------------------------------------------------------------- dense head

K = 5
SHAPE = (3, 18, 26, 3)  # 5 x 7 after the stem, 3 x 4 at the end: rounded up
BOX = np.array(
    [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1]], bool
)  # reaches the ends


def test_bfloat16_keeps_logits_of_tokens_in_float32():
  model = _dense_model(dtype='bfloat16')
  found, _ = jax.eval_shape(
      functools.partial(
          model.init_with_output, train=False, method='class_and_dense_logits'
      ),
      jax.random.key(0),
      jax.ShapeDtypeStruct(SHAPE, jnp.float32),
  )
  assert {x.dtype for x in found} == {jnp.dtype('float32')}


def _dense_model(**overrides):
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


@pytest.fixture(scope='module')
def outputs():
  """Returns parameters, and outputs with and without mixing."""
  model, image = _dense_model(), random_variables.image(SHAPE)
  variables = random_variables.nested(model, SHAPE)

  def by_hand(model, image):
    """Mixes neighbours after the stem; a cell of `BOX` is 2 x 2 positions."""
    x = model._after_stem(image, None, False)
    inside = np.kron(BOX, np.ones((2, 2), bool))[None, :5, :7, None]
    mixed = jnp.where(inside, x[jnp.array([1, 0, 2])], x)
    *_, last = model._stages(mixed, None, False).values()
    return model._classify(last, False), model.dense_head(last)

  @jax.jit
  def run(variables):
    apply = functools.partial(model.apply, variables, image, train=False)
    both = functools.partial(apply, method='class_and_dense_logits')
    plain = _dense_model(dense_head=False)
    return {
        'last': apply(method='features')['stage2'],
        'logits': apply(),
        'class': plain.apply(variables, image, train=False),
        'both': both(),
        'mixed': both(box=jnp.asarray(BOX)),
        'by_hand': model.apply(variables, image, method=by_hand),
    }

  return jax.device_get((variables['params'], run(variables)))


def _dense_logits(params, last):
  """Applies the dense head to each position, in loops."""
  kernel, bias = params['dense_head']['kernel'], params['dense_head']['bias']
  dense = np.zeros((*last.shape[:3], K))
  for i, y, x, k in np.ndindex(*dense.shape):
    dense[i, y, x, k] = np.float64(last[i, y, x]) @ kernel[:, k] + bias[k]
  return dense


def test_dense_logits_are_a_linear_map_of_the_last_stage(outputs):
  params, found = outputs
  logits, dense = found['both']
  assert dense.dtype == np.float32 and dense.shape == (3, 3, 4, K)
  np.testing.assert_allclose(
      dense, _dense_logits(params, found['last']), atol=2e-5
  )
  np.testing.assert_allclose(logits, found['class'], atol=2e-5)


def test_logits_are_those_of_the_class_and_half_the_largest(outputs):
  """The maximum of each class is over all rows and columns."""
  params, found = outputs
  dense = _dense_logits(params, found['last'])
  expected = np.zeros((3, K))
  for i, k in np.ndindex(3, K):
    expected[i, k] = found['class'][i, k] + 0.5 * max(
        dense[i, y, x, k] for y in range(3) for x in range(4)
    )
  np.testing.assert_allclose(found['logits'], expected, atol=4e-5)


def test_box_mixing_swaps_after_the_stem_and_swaps_back(outputs):
  _, found = outputs
  logits, dense = found['mixed']
  by_hand, crossed = found['by_hand']  # before swapping back
  np.testing.assert_allclose(logits, by_hand, atol=2e-5)
  expected = np.zeros_like(crossed)
  for i, y, x in np.ndindex(*crossed.shape[:3]):
    source = {0: 1, 1: 0, 2: 2}[i] if BOX[y, x] else i
    expected[i, y, x] = crossed[source, y, x]
  np.testing.assert_allclose(dense, expected, atol=2e-5)
  # A missing swap would be noticed.
  assert np.abs(crossed - expected).max() > 0.01
  assert np.abs(dense - found['both'][1]).max() > 0.01


def test_a_box_of_tokens_covers_squares_of_four_stages():
  """8 x 8 tokens after the stem for each of the last map."""
  model = _tiny('rmt_compact', dense_head=True)
  image = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
  box = jax.ShapeDtypeStruct((2, 3), bool)
  start = functools.partial(
      model.init_with_output, train=False, method='class_and_dense_logits'
  )
  swap = mock.patch.object(
      backbone.image_pairs, 'swap_inside', side_effect=lambda x, box: x
  )
  with swap as swapped:
    jax.eval_shape(start, jax.random.key(0), image, box=box)
  boxes = [call.args[1].shape for call in swapped.mock_calls]
  assert boxes == [(16, 24), (2, 3)]


# ------------------------------------------------------------------- remat

_REMAT_FIELDS = {
    'widths': (8, 16, 24, 32),
    'depths': (2, 1, 1, 1),
    'num_heads': (2, 2, 3, 4),
    'window_size': 3,
    'drop_path_rate': 0.4,
}
_KEY = jax.random.key(3)


def _remat_model(remat):
  return gswinrmt_jax.create_model(
      'retention_compact', num_classes=5, remat=remat, **_REMAT_FIELDS
  )


def _loss(remat, params, x):
  """Returns a loss on the first stage, some of whose branches are dropped."""
  stage = backbone.Stage(_remat_model(remat).arch, 0, jnp.float32, remat)
  return jnp.sin(
      stage.apply({'params': params}, x, train=True, rngs={'dropout': _KEY})
  ).sum()


@pytest.fixture(scope='module')
def arguments():
  x = jax.random.normal(jax.random.key(0), (2, 6, 6, 8))
  stage = backbone.Stage(_remat_model('none').arch, 0, jnp.float32)
  init = functools.partial(stage.init, train=False)
  shapes = jax.eval_shape(init, jax.random.key(1), x)
  return random_variables.of_shapes(shapes)['params'], x


def _gradient(remat, arguments):
  gradient = jax.grad(functools.partial(_loss, remat), (0, 1))
  quick = compilation.quick_compilation()
  return jax.jit(gradient, compiler_options=quick)(*arguments)


@pytest.fixture(scope='module')
def gradient(arguments):
  return _gradient('none', arguments)


@pytest.mark.parametrize(
    'remat',
    [pytest.param('elementwise', marks=pytest.mark.slow), 'blocks'],
)
def test_gradients_are_those_without(arguments, gradient, remat):
  expected, found = gradient, _gradient(remat, arguments)
  chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-5)
  leaves = jax.tree.leaves(expected)
  assert all(np.abs(leaf).max() > 1e-3 for leaf in leaves)


def test_each_keeps_less_for_the_gradient(arguments):
  def kept(remat):
    """Returns the bytes saved for the backward pass."""

    def forward(*args):
      return jax.vjp(functools.partial(_loss, remat), *args)[1]

    leaves = jax.tree.leaves(jax.eval_shape(forward, *arguments))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

  sizes = {remat: kept(remat) for remat in backbone.REMAT}
  assert sizes['blocks'] < sizes['elementwise'] < sizes['none']


def test_every_stage_is_told():
  bound = _remat_model('blocks').bind({})
  stages = [getattr(bound, f'stage{number}') for number in (1, 2, 3, 4)]
  assert [stage.remat for stage in stages] == ['blocks'] * 4
