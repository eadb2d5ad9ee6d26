"""All maps of an image, against the model in float64."""

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import random_variables
import weight_loops

import gswinrmt_jax
from gswinrmt_jax import maps
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.maps import computation, grid

# Maps of 13 x 9, 7 x 5, 4 x 3 and 2 x 2 tokens; the point is in their last
# partial windows.
SIZE = (52, 36)
POINT = (33, 47)
TOKENS = ((11, 8), (5, 4), (2, 2), (1, 1))
_TINY = {
    'widths': (8, 8, 12, 16),
    'depths': (1, 2, 1, 1),
    'num_heads': (1, 2, 3, 4),
    'depthwise_impl': 'conv',
}
IMAGE = random_variables.image((1, *SIZE, 3))


def _model(name, **fields):
  return gswinrmt_jax.create_model(
      f'{name}_compact', num_classes=5, **_TINY | fields
  )


def _oracle(monkeypatch, model, system, variables):
  """Maps and logits in float64, and what each attention was called with."""
  inputs = {}
  attention = oracle.attention

  def record(tree, x, config, stage, index):
    inputs[stage, index] = tree, x
    return attention(tree, x, config, stage, index)

  monkeypatch.setattr(oracle, 'attention', record)
  config = {
      'system': system,
      'depths': model.arch.depths,
      'num_heads': model.arch.num_heads,
      'window_size': model.arch.window_size,
      'full_stages': model.arch.full_stages,
      'decay_range': model.arch.decay_ranges,
      'head': model.arch.head,
  }
  flat = random_variables.flat(model, IMAGE.shape)
  out = oracle.forward(flat, IMAGE, config)
  return out, inputs, oracle.nest(flat), config


def _expected_weights(model, system, tree, x, stage, index):
  heads = model.arch.num_heads[stage - 1]
  query, key = (
      oracle.dense(tree[name], x)[0].reshape(*x.shape[1:3], heads, -1)
      for name in ('query', 'key')
  )
  if 'decay_logit' in tree:
    rates = oracle.sigmoid(tree['decay_logit'])
  else:
    spread = model.arch.decay_ranges[stage - 1]
    rates = np.exp(oracle.fixed_log_decay(heads, spread))
    rates = np.stack([rates] * (1 if stage in model.arch.full_stages else 2))
  window = model.arch.window_size or None
  weights = weight_loops.row(
      system,
      query,
      key,
      rates,
      TOKENS[stage - 1],
      window=window,
      shift=window // 2 if window and index % 2 else 0,
  )
  return weights, rates


def _finite_difference_cam(out, tree, config, stage, label):
  """Steps each channel of a map as a whole: `sum_hw(dlogit / dA_c)`."""
  activation = out[f'stage{stage}']
  _, height, width, channels = activation.shape
  step = 1e-5 * np.eye(channels)[:, None, None]
  x = np.concatenate([activation + step, activation - step])
  params, statistics = tree['params'], tree['batch_stats']
  for later in range(stage + 1, 5):
    down = f'down{later - 1}'
    x = oracle.conv(params[down]['conv'], x, stride=2)
    x = oracle.batch_norm(params[down]['norm'], statistics[down]['norm'], x)
    for index in range(config['depths'][later - 1]):
      block = params[f'stage{later}'][f'block{index:02}']
      x = oracle.block(block, x, config, later, index)
  logit = oracle.classify(params, statistics, x, config['head'])[:, label]
  importance = (logit[:channels] - logit[channels:]) / 2e-5 / (height * width)
  return np.maximum((activation[0] * importance).sum(-1), 0)


@pytest.mark.parametrize(
    ('system', 'fields', 'label', 'options'),
    [
        (
            'retention',
            {'window_size': 3, 'attention_impl': 'cyclic'},
            3,
            {'label': 3, 'cam_stage': 3},
        ),
        (
            'rmt',
            {'full_stages': (3, 4), 'depths': (2, 1, 1, 1)},
            None,
            {'blocks': (0, 0, 0, -1), 'cam_stage': 2},
        ),
    ],
)
def test_maps_are_those_of_the_equations(
    monkeypatch, system, fields, label, options
):
  model = _model(system, **fields)
  variables = random_variables.nested(model, IMAGE.shape)
  got = maps.compute(model, variables, IMAGE[0], point=POINT, **options)
  out, inputs, tree, config = _oracle(monkeypatch, model, system, variables)

  np.testing.assert_allclose(got.logits, out['logits'][0], atol=1e-4)
  assert got.label == (out['logits'].argmax() if label is None else label)
  # The last ones, or those asked for.
  blocks = (0, 0, 0, 0) if 'blocks' in options else (0, 1, 0, 0)
  for stage, (block, of_stage) in enumerate(
      zip(blocks, got.stages, strict=True), start=1
  ):
    parameters, x = inputs[stage, block]
    weights, rates = _expected_weights(
        model, system, parameters, x, stage, block
    )
    assert (of_stage.block, of_stage.token) == (block, TOKENS[stage - 1])
    np.testing.assert_allclose(of_stage.weights, weights, atol=2e-5)
    np.testing.assert_allclose(of_stage.rates, rates, rtol=1e-5)
    reach = (np.array(of_stage.kernel.shape[1:]) - 1) // 2
    largest = [model.arch.window_size or 99] * 2
    assert (reach == np.minimum(largest, x.shape[1:3]) - 1).all()
    np.testing.assert_allclose(
        of_stage.kernel[:, 0, reach[1]], rates[-1] ** reach[0], rtol=1e-5
    )
    if system == 'rmt':
      assert of_stage.gate is None
    else:
      gate = oracle.sigmoid(oracle.dense(parameters['gate'], x))[0].mean(-1)
      np.testing.assert_allclose(of_stage.gate, gate, atol=1e-5)

  assert got.cam_stage == options['cam_stage']
  cam = _finite_difference_cam(out, tree, config, got.cam_stage, got.label)
  assert cam.max() > 1e-3
  expected = grid.upsample(jnp.float32(cam), 2 ** (got.cam_stage + 1), SIZE)
  np.testing.assert_allclose(got.cam, expected, rtol=1e-3, atol=1e-5)


def test_defaults(monkeypatch):
  """The middle pixel, the last blocks, float32; no decay, so no kernel."""
  asked = {}

  def run(model, variables, image, tokens, label, **options):
    asked.update(options, dtype=model.dtype, tokens=tokens, label=label)
    weights = [
        np.ones((heads, *grid.extents(SIZE, 2 ** (stage + 1))), np.float32)
        for stage, heads in enumerate(model.arch.num_heads, start=1)
    ]
    cam = np.zeros(SIZE, np.float32)
    return np.zeros(5, np.float32), 4, cam, [(w, None, None) for w in weights]

  monkeypatch.setattr(computation, '_run', run)
  model = _model('rmt', decay='none', dtype='bfloat16')
  got = maps.compute(model, {}, np.zeros((*SIZE, 3)))
  assert asked == {
      'blocks': (0, 1, 0, 0),
      'cam_stage': 1,
      'dtype': jnp.float32,
      'tokens': ((6, 4), (3, 2), (1, 1), (0, 0)),
      'label': None,
  }
  assert (got.size, got.point, got.label) == (SIZE, (18, 26), 4)
  assert {(s.rates, s.kernel, s.gate) for s in got.stages} == {(None,) * 3}


def test_the_stage_of_grad_cam_has_enough_tokens():
  strides = (4, 8, 16, 32)
  assert computation._deepest((32, 32), strides) == 1  # 8, 4, 2, 1 tokens
  assert computation._deepest((99, 49), strides) == 2  # 49 / 8, rounded up: 7
  assert computation._deepest((99, 48), strides) == 1
  assert computation._deepest((224, 224), strides) == 4
  assert computation._deepest((16, 16), strides) == 1  # None has enough.


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'point': (36, 0)}, 'point 36, 0 is outside .* 36 x 52'),
        ({'point': (0, -1)}, 'point 0, -1'),
        ({'label': 5}, 'class 5: the model has classes 0 to 4'),
        ({'blocks': (0, 2, 0, 0)}, r'blocks \(0, 2, 0, 0\)'),
        ({'blocks': (0, -3, 0, 0)}, 'blocks'),
        ({'blocks': (0, 0, 0)}, 'blocks'),
        ({'cam_stage': 5}, 'stage 5: there are 1 to 4'),
    ],
)
def test_what_does_not_exist_is_refused(options, message):
  with pytest.raises(UserError, match=message):
    maps.compute(_model('rmt'), {}, IMAGE[0], **options)


def test_images_that_are_none_are_refused():
  with pytest.raises(ValueError, match=r'one image \[h w 3\] is needed'):
    maps.compute(_model('rmt'), {}, IMAGE)
  with pytest.raises(ValueError, match='at least 32x32'):
    maps.compute(_model('rmt'), {}, np.zeros((8, 40, 3), np.float32))
