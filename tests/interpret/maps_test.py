"""Tests the maps of an image against the float64 oracle, and their plots."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import oracle
from PIL import Image
import pytest
import random_variables
import weight_loops

import gswinrmt_jax
from gswinrmt_jax import ops
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.interpret import drawing, maps
from gswinrmt_jax.ops import positions

# The stages have 13 x 9, 7 x 5, 4 x 3 and 2 x 2 tokens; the point lies in
# their last, partial windows.
SIZE = (52, 36)
POINT = (33, 47)
TOKENS = ((11, 8), (5, 4), (2, 2), (1, 1))
_TINY = {
    'widths': (8, 8, 12, 16),
    'depths': (1, 2, 1, 1),
    'num_heads': (1, 2, 3, 4),
}
IMAGE = random_variables.image((1, *SIZE, 3))


def _model(name, **fields):
  return gswinrmt_jax.create_model(
      f'{name}_compact', num_classes=5, **_TINY | fields
  )


def _oracle(monkeypatch, model, system, variables):
  """Returns the oracle's outputs, attention inputs, variables and config."""
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
  """Computes Grad-CAM; each step moves all pixels of one channel.

  The difference quotient is `sum_hw(dlogit / dA_c)`.
  """
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
            {'window_size': 3},
            3,
            {'label': 3, 'cam_stage': 3},
        ),
        (
            'rmt',
            {'full_stages': (3, 4), 'depths': (2, 1, 1, 1)},
            None,
            {'cam_stage': 2},
        ),
        ('swat', {'window_size': 3}, None, {'cam_stage': 2}),
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
  for stage, stage_maps in enumerate(got.stages, start=1):
    last = model.arch.depths[stage - 1] - 1
    parameters, x = inputs[stage, last]
    weights, rates = _expected_weights(
        model, system, parameters, x, stage, last
    )
    assert stage_maps.token == TOKENS[stage - 1]
    np.testing.assert_allclose(stage_maps.weights, weights, atol=2e-5)
    np.testing.assert_allclose(stage_maps.rates, rates, rtol=1e-5)
    reach = (np.array(stage_maps.kernel.shape[1:]) - 1) // 2
    largest = [model.arch.window_size or 99] * 2
    assert (reach == np.minimum(largest, x.shape[1:3]) - 1).all()
    np.testing.assert_allclose(
        stage_maps.kernel[:, 0, reach[1]], rates[-1] ** reach[0], rtol=1e-5
    )
    if 'gate' not in parameters:
      assert stage_maps.gate is None
    else:
      gate = oracle.sigmoid(oracle.dense(parameters['gate'], x))[0].mean(-1)
      np.testing.assert_allclose(stage_maps.gate, gate, atol=1e-5)

  assert got.cam_stage == options['cam_stage']
  cam = _finite_difference_cam(out, tree, config, got.cam_stage, got.label)
  assert cam.max() > 1e-3
  expected = maps.upsample(jnp.float32(cam), 2 ** (got.cam_stage + 1), SIZE)
  np.testing.assert_allclose(got.cam, expected, rtol=1e-3, atol=1e-5)


def test_defaults(monkeypatch):
  """The middle pixel, float32; a model without decay has no kernel."""
  asked = {}

  def run(model, variables, image, tokens, label, **options):
    asked.update(options, dtype=model.dtype, tokens=tokens, label=label)
    asked['remat'] = model.remat  # under it, values cannot be read
    weights = [
        np.ones(
            (heads, *(-(-extent // 2 ** (stage + 1)) for extent in SIZE)),
            np.float32,
        )
        for stage, heads in enumerate(model.arch.num_heads, start=1)
    ]
    cam = np.zeros(SIZE, np.float32)
    return np.zeros(5, np.float32), 4, cam, [(w, None, None) for w in weights]

  monkeypatch.setattr(maps, '_run', run)
  model = _model('rmt', decay='none', dtype='bfloat16', remat='blocks')
  got = maps.compute(model, {}, np.zeros((*SIZE, 3)))
  assert asked == {
      'cam_index': 0,  # the first
      'dtype': jnp.float32,
      'remat': 'none',
      'tokens': ((6, 4), (3, 2), (1, 1), (0, 0)),
      'label': None,
  }
  assert (got.size, got.point, got.label) == (SIZE, (18, 26), 4)
  assert {(s.rates, s.kernel, s.gate) for s in got.stages} == {(None,) * 3}


@pytest.mark.parametrize(
    ('distance', 'drawn'),
    [(positions.manhattan, True), (positions.reading_distance, False)],
)
def test_only_decay_with_manhattan_distance_has_a_kernel(
    distance, drawn, monkeypatch
):
  """Of a full stage, in a form of one's own."""
  form = ops.softmax_weights, distance
  monkeypatch.setitem(ops.FULL_FORMS, 'own', form)
  arch = _model('rmt', score_fn='own', full_stages=(1, 2, 3, 4)).arch
  rates = np.log(np.full((1, 2), 0.5))
  found = maps._stage_maps(arch, 0, (0, 0), np.ones((2, 3, 3)), rates, None)
  assert (found.kernel is not None) == (found.rates is not None) == drawn


def test_the_stage_of_grad_cam_has_enough_tokens():
  strides = (4, 8, 16, 32)
  assert maps._deepest((32, 32), strides) == 1  # 8, 4, 2, 1 tokens
  assert maps._deepest((99, 49), strides) == 2  # ceil(49 / 8) = 7
  assert maps._deepest((99, 48), strides) == 1
  assert maps._deepest((224, 224), strides) == 4
  assert maps._deepest((16, 16), strides) == 1  # No stage has enough.


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'point': (36, 0)}, 'point 36, 0 is outside .* 36 x 52'),
        ({'point': (0, -1)}, 'point 0, -1'),
        ({'label': 5}, 'class 5: the model has classes 0 to 4'),
        ({'cam_stage': 5}, 'stage 5: there are 1 to 4'),
    ],
)
def test_what_does_not_exist_is_refused(options, message):
  with pytest.raises(UserError, match=message):
    maps.compute(_model('rmt'), {}, IMAGE[0], **options)


def test_dense_models_are_refused(as_users_run):
  dense = gswinrmt_jax.create_segmenter('rmt_t', head='fpn', num_classes=2)
  with pytest.raises(UserError, match='are those of a classifier, not of a Se'):
    maps.compute(dense, {}, IMAGE[0])


def test_images_that_are_none_are_refused():
  for image in (IMAGE, np.zeros((*SIZE, 3), np.uint8)):
    with pytest.raises(
        ValueError, match=r'image \[h w 3\], floating .* needed'
    ):
      maps.compute(_model('rmt'), {}, image)
  with pytest.raises(ValueError, match='at least 32x32'):
    maps.compute(_model('rmt'), {}, np.zeros((8, 40, 3), np.float32))


def test_mean_distance_by_hand():
  """Seen from (1, 2), weights 1 and 3 lie at distances 3 and 1: 6 / 4."""
  weights = np.zeros((3, 2, 3), np.float32)
  weights[0, 0, 0], weights[0, 0, 2] = 1, 3
  weights[1, 1, 2] = 0.1
  np.testing.assert_allclose(maps.mean_distance(weights, (1, 2)), [1.5, 0, 0])


def test_decay_kernel_by_hand():
  """Decays by 1/2 per column and 1/4 per row."""
  rates = np.array([[0.5, 1.0], [0.25, 1.0]])
  kernel = maps.decay_kernel(rates, (1, 2))
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
  both = maps.decay_kernel(np.array([[0.5]]), (1, 1))
  np.testing.assert_allclose(both[0, 0], [1 / 4, 1 / 2, 1 / 4])


def test_distance_of_weights_that_may_be_negative():
  weights = np.float32([[[3, -1], [0, 0]], [[-1, 0], [0, 1]]])
  np.testing.assert_allclose(
      maps.mean_distance(weights, (0, 0)), [1 / 4, 2 / 2]
  )


def test_a_point_is_x_then_y_and_a_token_row_then_column():
  assert maps.token_at((17, 40), 4) == (10, 4)
  assert maps.token_at((31, 32), 32) == (1, 0)


def test_upsample_is_bilinear_between_the_middles_and_cut():
  """Token centres lie at pixels 1.5 and 5.5, four quarter steps apart."""
  values = jnp.array([[0.0, 4.0], [8.0, 12.0]])
  line = np.array([0, 0, 0.5, 1.5, 2.5, 3.5, 4])  # the 8th is cut
  out = maps.upsample(values, 4, (5, 7))
  assert out.shape == (5, 7)
  np.testing.assert_allclose(out[0], line, atol=1e-6)
  np.testing.assert_allclose(out[:, 0], 2 * line[:5], atol=1e-6)


DRAWN_SIZE = (40, 60)
HEADS = (1, 2, 8, 16)
NAMES = ('attention_reach', 'decay_kernels', 'gate', 'grad_cam')
PICTURE = np.random.default_rng(0).integers(
    0, 256, (*DRAWN_SIZE, 3), dtype=np.uint8
)


def _maps(*, gate=True, decay=True, cam=1.0):
  """Returns made-up maps; stage 4 has the rates of full attention."""
  rng = np.random.default_rng(1)
  stages = []
  for stage, heads in enumerate(HEADS, start=1):
    stride = 2 ** (stage + 1)
    extents = tuple(-(-extent // stride) for extent in DRAWN_SIZE)
    rates = rng.uniform(0.5, 1, (1 if stage == 4 else 2, heads))
    token = maps.token_at((33, 21), stride)
    weights = rng.uniform(size=(heads, *extents))
    weights[:, :, 0] = 0
    kernel = maps.decay_kernel(rates, (extents[0] - 1, extents[1] - 1))
    stages.append(
        maps.StageMaps(
            stride=stride,
            token=token,
            weights=weights,
            distance=10 * stage + np.arange(float(heads)),
            rates=rates if decay else None,
            kernel=kernel if decay else None,
            gate=rng.uniform(0.3, 0.6, extents) if gate else None,
        )
    )
  return maps.Maps(
      size=DRAWN_SIZE,
      point=(33, 21),
      logits=np.zeros(7),
      label=5,
      stages=tuple(stages),
      cam_stage=2,
      cam=cam * rng.uniform(size=DRAWN_SIZE),
  )


def _titles(figure):
  return [axes.get_title() for axes in figure.axes]


def test_four_whole_pictures_in_a_new_directory(tmp_path):
  directory = tmp_path / 'new' / 'maps'
  title = 'caf\udce9, $x_$ ' * 20  # a file's name: not UTF-8, no mathematics
  found = dataclasses.replace(_maps(), stages=_maps().stages[:2])
  paths = drawing.write(
      directory, found, PICTURE, title=title, class_name='$x_$'
  )
  assert sorted(paths) == [directory / f'{name}.png' for name in NAMES]
  assert sorted(directory.iterdir()) == sorted(paths)
  for path in paths:
    drawn = np.asarray(Image.open(path).convert('RGB'))
    assert 400 < drawn.shape[0] < 2000 and 800 < drawn.shape[1] < 3200
    assert drawn.std() > 20
    # Nothing touches the border.
    border = np.concatenate([drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]])
    assert (border == 255).all()


def test_pictures_of_another_model_are_removed(tmp_path):
  """This one has neither decay nor gate."""
  for name in NAMES:
    (tmp_path / f'{name}.png').write_text('of another')
  maps = _maps()
  first, *_ = (
      dataclasses.replace(stage, kernel=None, gate=None)
      for stage in maps.stages
  )
  maps = dataclasses.replace(maps, stages=(first,))
  paths = drawing.write(tmp_path, maps, PICTURE)
  assert [path.stem for path in paths] == ['attention_reach', 'grad_cam']
  assert sorted(tmp_path.iterdir()) == paths


def test_reach_has_the_image_and_at_most_eight_heads_of_a_stage():
  """8 of 16 heads, evenly spaced; a frame marks each token's pixels."""
  figure = drawing._reach(_maps(), PICTURE)
  image, *panels, colorbar = figure.axes
  assert len(panels) == 1 + 2 + 8 + 8
  np.testing.assert_array_equal(image.images[0].get_array(), PICTURE)
  shown = [panel.get_title().partition('\n')[0] for panel in panels[11:]]
  heads = (0, 2, 4, 6, 9, 11, 13, 15)
  assert shown == [f'stage 4, head {n}' for n in heads]
  assert [panel.get_title() for panel in panels[1:3]] == [
      'stage 2, head 0\ndistance 20.00',
      'stage 2, head 1\ndistance 21.00',
  ]
  (frame,) = panels[1].patches
  assert frame.get_bbox().bounds == (31.5, 15.5, 8, 8)
  (cut,) = panels[-1].patches
  assert cut.get_bbox().bounds == (31.5, -0.5, 28, 32)
  assert len(image.patches) == 4  # one token a stage
  assert colorbar.get_ylim() == (0, 1)
  # Twenty panels fill four rows of five.
  assert image.get_gridspec().get_geometry() == (4, 5)


def _one_token():
  return dataclasses.replace(
      _maps().stages[3],
      weights=np.ones((16, 1, 1)),
      kernel=np.ones((16, 1, 1)),
      gate=np.full((1, 1), 0.9),
  )


def test_captions_say_what_signs_mean():
  found = _maps()
  for gate_fn, said in (
      (
          'sigmoid',
          '(sigmoid), mean over channels: over the image, and alone. '
          'Red: open; blue: closed; white: 0.5.',
      ),
      ('swish', 'Red: positive; blue: negative; white: 0, closed.'),
  ):
    figure = drawing._gate(dataclasses.replace(found, gate_fn=gate_fn), PICTURE)
    assert said in ' '.join(figure.get_supxlabel().split())
  said = 'Of negative weights, the absolute value is shown.'
  for factor in (1, -1):
    stages = tuple(
        dataclasses.replace(stage, weights=factor * stage.weights)
        for stage in found.stages
    )
    figure = drawing._reach(dataclasses.replace(found, stages=stages), PICTURE)
    caption = ' '.join(figure.get_supxlabel().split())
    assert (said in caption) == (factor < 0)


def test_stages_of_one_token_alone_are_refused(tmp_path):
  found = dataclasses.replace(_maps(), stages=(_one_token(),))
  with pytest.raises(UserError, match='at 40x60 pixels, every stage has a si'):
    drawing.write(tmp_path / 'maps', found, PICTURE)
  assert not (tmp_path / 'maps').exists()


def test_stages_of_one_token_are_left_out_and_named():
  found = _maps()
  stages = *found.stages[:3], _one_token()
  found = dataclasses.replace(found, stages=stages)
  for figure in (
      drawing._reach(found, PICTURE),
      drawing._decay(found),
      drawing._gate(found, PICTURE),
  ):
    assert 'stage 4' not in ' '.join(_titles(figure))
    caption = ' '.join(figure.get_supxlabel().split())
    assert caption.endswith('Not shown: stage 4, of one token.')


def test_tokens_lie_over_their_pixels_and_the_last_are_cut():
  """Stage 3 has 3 x 4 tokens of 16 pixels on an image of 40 x 60."""
  figure = drawing._reach(_maps(), PICTURE)
  panel = figure.axes[4]
  (weights,) = panel.images
  assert weights.get_extent() == [-0.5, 63.5, 47.5, -0.5]
  assert panel.get_xlim() == (-0.5, 59.5) and panel.get_ylim() == (39.5, -0.5)
  of_head = _maps().stages[2].weights[0]
  np.testing.assert_allclose(
      weights.get_array().filled(0), of_head / of_head.max()
  )
  assert weights.get_array().mask[:, 0].all()  # no weight, no colour


def test_stages_without_a_kernel_are_left_out(tmp_path):
  """Those of a form of one's own may have another distance."""
  first, second, *rest = _maps().stages
  stages = dataclasses.replace(first, kernel=None), second, *rest
  found = dataclasses.replace(_maps(), stages=stages)
  assert tmp_path / 'decay_kernels.png' in drawing.write(
      tmp_path, found, PICTURE
  )
  shown = {title.partition(',')[0] for title in _titles(drawing._decay(found))}
  assert shown - {''} == {'stage 2', 'stage 3', 'stage 4'}


def test_gates_are_drawn_over_the_image_and_alone_on_one_scale():
  figure = drawing._gate(_maps(), PICTURE)
  gates = [stage_maps.gate for stage_maps in _maps().stages]
  spread = max(np.abs(gate - 0.5).max() for gate in gates)
  image, *panels, _ = figure.axes
  assert len(image.images) == 1 and len(panels) == 8
  for over, alone, gate in zip(panels[:4], panels[4:], gates, strict=True):
    assert [len(over.images), len(alone.images)] == [2, 1]
    assert over.images[0].get_array().shape == DRAWN_SIZE
    for drawn in (over.images[1], alone.images[0]):
      np.testing.assert_array_equal(drawn.get_array(), gate)
      np.testing.assert_allclose(drawn.get_clim(), (0.5 - spread, 0.5 + spread))
    assert over.get_title().endswith(f'mean {gate.mean():.2f}')


def test_grad_cam_is_drawn_over_its_largest_value():
  figure = drawing._grad_cam(_maps(cam=1e-5), PICTURE, 'zebra')
  _, over, alone, _ = figure.axes
  for drawn in (over.images[1], alone.images[0]):
    assert drawn.get_array().max() == pytest.approx(1)
  assert 'for zebra in the feature map of stage 2' in ' '.join(
      figure.get_supxlabel().split()
  )
  figure = drawing._grad_cam(_maps(cam=0.0), PICTURE, 'zebra')
  assert figure.get_supxlabel() == 'Stage 2 has no evidence for zebra.'


@pytest.mark.parametrize(
    'picture', [PICTURE.astype(np.float32), PICTURE[:, :-1], PICTURE[..., 0]]
)
def test_another_picture_is_refused(tmp_path, picture):
  with pytest.raises(ValueError, match=r'not uint8 \(40, 60, 3\)'):
    drawing.write(tmp_path / 'maps', _maps(), picture)
  assert not (tmp_path / 'maps').exists()
