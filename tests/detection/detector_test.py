"""Tests whole detectors: padding, initial values, mistakes."""

import functools
import operator
from unittest import mock

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_variables

from gswinrmt_jax.models.dense.dense_boxes import DenseBoxes
from gswinrmt_jax.models.dense.detector import create_detector
from gswinrmt_jax.ops.anchors import AnchorGrid
from gswinrmt_jax.ops.assignment import Truth
from gswinrmt_jax.train import detection_losses

_TINY = {
    'num_classes': 3,
    'channels': 6,
    'detections': 8,
    'widths': (4, 6, 8, 10),
    'depths': (1, 1, 1, 1),
    'num_heads': (1, 1, 1, 1),
}
_RETINA = _TINY | {'head': 'retina', 'tower_channels': 6, 'tower_depth': 1}
_CASCADE = _TINY | {
    'head': 'cascade',
    'rpn_channels': 6,
    'conv_channels': 5,
    'linear_channels': 8,
    'mask_channels': 4,
    'train_proposals': 16,
    'proposals': 16,
    'roi_samples': 16,
}


def _truth(batch):
  box = jnp.array([[[5.0, 6, 30, 40], [20, 8, 50, 31]]])
  return Truth(
      jnp.tile(box, (batch, 1, 1)),
      jnp.tile(jnp.array([[2, 0]]), (batch, 1)),
      jnp.ones((batch, 2), bool),
      jnp.ones((batch, 2, 12, 12), jnp.uint8),
  )


def test_what_is_image():
  """With round_extents=32, zeros up to the next multiple of 32.

  Boxes end at the image in any case. Without extents, all of it is image.
  `extents_test` shows that backbone and head keep to the extents,
  `prediction_test` pads the images of a whole detector.
  """
  size, canvas = (50, 70), (96, 128)
  image = np.asarray(random_variables.image((1, *size, 3)))
  padded = np.ones((1, *canvas, 3), np.float32)
  padded[:, : size[0], : size[1]] = image
  model = create_detector('rmt_swin_t', **_RETINA, round_extents=32)
  nothing = DenseBoxes(
      jnp.zeros((1, 1, 3)),
      jnp.zeros((1, 1, 4)),
      jnp.zeros((1, 4)),
      jnp.ones((1, 1), bool),
  )
  seen = []

  def observe(call, args, kwargs, context):
    if context.method_name == 'features':
      seen.append((*args, kwargs['extents']))
      return {'stage1': args[0]}
    if (context.module.name, context.method_name) == ('head', '__call__'):
      seen.append(args[1:])
      return nothing
    return call(*args, **kwargs)

  with nn.intercept_methods(observe):
    model.apply({}, jnp.asarray(padded), train=False, extents=jnp.array([size]))
    model.apply({}, jnp.asarray(image), train=False)
  (x, extents), (sizes, valid), (bare, none), (bare_sizes, _) = seen
  assert x.shape == (1, *canvas, 3) and bare.shape == (1, 64, 96, 3)
  for got in (x, bare):
    np.testing.assert_array_equal(got[:, : size[0], : size[1]], image)
    assert np.abs(got).sum() == pytest.approx(np.abs(image).sum(), rel=1e-5)
  assert extents.tolist() == valid.tolist() == [[64, 96]] and none is None
  assert sizes.tolist() == bare_sizes.tolist() == [[*size]]


@pytest.mark.parametrize('head', ('retina', 'cascade'))
def test_bfloat16_computes_outputs_and_losses_in_float32(head):
  fields = _RETINA if head == 'retina' else _CASCADE
  model = create_detector('rmt_t', dtype=jnp.bfloat16, **fields)
  image = jnp.zeros((2, 64, 64, 3))

  def run(key, truth):
    detected, variables = model.init_with_output(key, image, train=False)
    found, _ = model.apply(
        variables,
        image,
        train=True,
        truth=truth,
        rngs={'dropout': key, 'sampling': key},
        mutable=['batch_stats'],
    )
    loss = detection_losses.detection_loss(model, found, truth)
    return loss, detected, found

  outputs = jax.eval_shape(run, jax.random.key(0), _truth(2))
  (_, parts), found, _ = outputs
  dtypes = {x.dtype for x in jax.tree.leaves(outputs)}
  floats = {x for x in dtypes if jnp.issubdtype(x, jnp.floating)}
  assert floats == {jnp.dtype('float32')}
  assert all(x.shape == () for x in parts.values())
  names = {'loss_cls', 'loss_bbox', 'positives'}
  if head == 'cascade':
    names = {'loss_rpn_cls', 'loss_rpn_bbox', 'positives'} | {
        f's{i}.loss_{part}'
        for i in range(3)
        for part in ('cls', 'bbox', 'mask')
    }
    assert found.masks.shape == (2, 8, 28, 28)
  assert parts.keys() == names
  assert found.boxes.shape == (2, 8, 4)


def test_boxes_are_drawn_at_random():
  """With the stream 'sampling', another key draws others; without, the first.

  All have objects before background, and no more than a quarter.
  """
  # One stage: those of a cascade draw by the same function.
  model = create_detector('rmt_t', **_CASCADE | {'head': 'mask'}).head
  rng = np.random.default_rng(0)
  low = rng.uniform(0, 60, (2, 40, 2))
  boxes = jnp.asarray(np.concatenate([low, low + 20], -1), jnp.float32)
  truth = _truth(2)
  near = jnp.tile(truth.boxes[:, :1], (1, 9, 1))  # nine good proposals
  boxes = jnp.concatenate([near, boxes], 1)
  levels = [jnp.ones((2, n, n, 6)) for n in (24, 12, 6, 3)]
  valid, sizes = jnp.ones((2, 49), bool), jnp.array([[96, 96]] * 2)
  args = levels, None, boxes, valid, sizes

  @jax.jit
  def run(**rngs):
    train = functools.partial(model.apply, train=False, method='train_stages')
    return train(variables, *args, truth, rngs=rngs)[0].rois

  init = functools.partial(model.init, train=False, method='train_stages')
  shapes = jax.eval_shape(init, jax.random.key(0), *args, truth)
  variables = random_variables.of_shapes(shapes)
  one, two = (run(sampling=jax.random.key(seed)) for seed in (1, 2))
  first, again, one, two = jax.device_get((run(), run(), one, two))
  np.testing.assert_array_equal(first.boxes, again.boxes)
  np.testing.assert_array_equal(first.boxes[:, 0], truth.boxes[:, 0])
  assert (one.boxes != two.boxes).any()
  assert (one.boxes[0] != one.boxes[1]).any()
  for rois in (first, one, two):
    assert rois.valid.all()
    np.testing.assert_array_equal(rois.assigned > 0, [4 * [1] + 12 * [0]] * 2)
    np.testing.assert_array_equal(rois.labels == 3, rois.assigned == 0)


def test_proposals_to_train_on_have_numbers_of_their_own():
  """Of 48 anchors, few compete, or few are proposed."""
  grid = AnchorGrid(((4, 4),), (8,), (8.0,))
  found = DenseBoxes(
      jnp.zeros((1, 48, 1)),
      jnp.zeros((1, 48, 4)),
      jnp.asarray(grid.boxes()),
      jnp.ones((1, 48), bool),
  )
  sizes = jnp.array([[32, 32]])
  for few, many in (('candidates', 'proposals'), ('proposals', 'candidates')):
    counts = {few: 3, f'train_{few}': 5, many: 9, f'train_{many}': 9}
    head = create_detector('rmt_t', head='mask', num_classes=3, **counts).head
    for training, count in ((True, 5), (False, 3)):
      propose = functools.partial(head.propose, grid=grid, training=training)
      boxes, _ = jax.eval_shape(propose, found, sizes=sizes)
      assert boxes.shape == (1, count, 4)


def test_rpn_is_trained_on_256_anchors_of_which_half_may_have_objects():
  """Of 600 anchors on an object and 600 far from it, drawn with a key."""
  near_and_far = jnp.array([[0.0, 0, 40, 40], [80, 80, 120, 120]])
  anchors = jnp.repeat(near_and_far, 600, 0)
  found = DenseBoxes(
      jnp.zeros((1, 1200, 1)),
      jnp.zeros((1, 1200, 4)),
      anchors,
      jnp.ones((1, 1200), bool),
  )
  truth = Truth(
      anchors[None, :1], jnp.zeros((1, 1), int), jnp.ones((1, 1), bool)
  )
  head = create_detector('rmt_t', head='mask', num_classes=3).head
  found, truth = (
      jax.tree.map(lambda x: jnp.concatenate([x, x]), each)
      for each in (found._replace(anchors=anchors[None]), truth)
  )
  found, sizes = found._replace(anchors=anchors), jnp.array([[128, 128]] * 2)

  apply = jax.jit(functools.partial(head.apply, method='rpn_targets'))

  def assign(**rngs):
    assigned = apply({}, found, sizes, truth, rngs=rngs).assigned
    assert (assigned > 0).sum(1).tolist() == [128, 128]
    assert (assigned == 0).sum(1).tolist() == [128, 128]
    return assigned

  one, two = (assign(sampling=jax.random.key(seed)) for seed in (1, 2))
  assert (one != two).any() and (one[0] != one[1]).any()
  first = assign()
  assert (first[:, :128] > 0).all() and (first[:, 600:728] == 0).all()


def test_proposals_of_score_0_are_not_trained_on():
  head = create_detector('rmt_t', **_CASCADE | {'head': 'mask'}).head
  kept = jnp.array([[[2.0, 3, 20, 30], [40, 40, 60, 60], [9, 9, 50, 20]]])
  levels = [jnp.ones((1, n, n, 6)) for n in (16, 8, 4, 2)]
  args = levels, jnp.array([[64, 64]])

  def run(key):
    with mock.patch.object(
        type(head), 'propose', lambda *_, **__: (kept, scores)
    ):
      how = {'train': True, 'truth': _truth(1)}
      return head.init_with_output(key, *args, **how)[0].stages[0].rois

  scores = jnp.array([[0.9, 0.0, 0.5]])
  rois = jax.jit(run)(jax.random.key(0))
  drawn = {tuple(box) for box in rois.boxes[rois.valid].tolist()}
  wanted = (kept[0, 0], kept[0, 2], *_truth(1).boxes[0])
  assert drawn == {tuple(box.tolist()) for box in wanted}


def test_how_the_heads_start():
  """As released: bounds and deviations of 3,000 elements or more."""
  fields = {'channels': 48, 'num_classes': 20, 'head': 'cascade'}
  fields |= {'conv_channels': 16, 'linear_channels': 64, 'mask_channels': 32}
  maps = [jnp.ones((1, n, n, 48)) for n in (4, 2, 1, 1)]

  def start(*names, **changes):
    head = create_detector('rmt_t', **changes).head

    @jax.jit  # compiles the draws of these layers alone
    def params(key):
      found = head.init(key, maps, jnp.array([[16, 16]]), train=False)
      return {
          name: functools.reduce(
              operator.getitem, name.split('/'), found['params']
          )
          for name in names
      }

    return jax.device_get(params(jax.random.key(0)))

  def std(layer, want):
    np.testing.assert_allclose(layer['kernel'].std(), want, rtol=0.05)
    assert not layer['bias'].any()

  retina = start(
      'classes',
      'box_tower_2',
      'boxes',
      'coarse_1',
      head='retina',
      channels=48,
      tower_channels=32,
  )
  classes = retina['classes']
  np.testing.assert_allclose(classes['bias'], -np.log(99), rtol=1e-6)
  np.testing.assert_allclose(classes['kernel'].std(), 0.01, rtol=0.02)
  std(retina['box_tower_2'], 0.01)
  std(retina['boxes'], 0.01)
  std(retina['coarse_1'], np.sqrt(6 / (9 * 96) / 3))
  wanted = {
      'rpn/conv': 0.01,
      'rpn/deltas': 0.01,
      'box_heads_1/layers_0': np.sqrt(6 / (49 * 16 + 64) / 3),
      'box_heads_1/logits': 0.01,
      'box_heads_1/deltas': 0.001,
      'mask_heads_2/convs_1': np.sqrt(2 / (9 * 32)),
      'mask_heads_2/upsample': np.sqrt(2 / (4 * 32)),
      'mask_heads_2/logits': np.sqrt(2 / 20),
  }
  without_bias = 'box_heads_1/convs_0/conv'
  cascade = start(*wanted, without_bias, **fields)
  assert 'bias' not in cascade[without_bias]
  for name, deviation in wanted.items():
    std(cascade[name], deviation)


def test_bitmaps_fill_the_boxes_of_their_objects():
  """Unless they have frames of their own."""
  rng, truth = np.random.default_rng(0), _truth(1)
  bitmaps = rng.integers(0, 2, truth.bitmaps.shape, np.uint8)
  truth = truth._replace(bitmaps=jnp.asarray(bitmaps))
  found = mock.Mock(
      mask_logits=jnp.asarray(rng.normal(size=(1, 3, 28, 28, 3))),
      rois=mock.Mock(
          assigned=jnp.array([[1, 2, 2]]),
          boxes=truth.boxes[:, [0, 1, 1]] + jnp.array([[[3.0, -2, 5, 1]]]),
      ),
  )
  labels = truth.labels[:, jnp.array([0, 1, 1])]

  @jax.jit
  def loss(frames):
    return detection_losses._mask_loss(
        found, labels, truth._replace(frames=frames)
    )

  assert loss(None) == loss(truth.boxes) != loss(truth.boxes * 0.5)


def test_an_image_without_objects_has_no_mask_loss():
  """Unused rows of truth are zeros: bitmaps in boxes without an area."""
  truth = jax.tree.map(jnp.zeros_like, _truth(1))
  found = mock.Mock(
      mask_logits=jnp.ones((1, 2, 28, 28, 3)),
      rois=mock.Mock(
          assigned=jnp.zeros((1, 2), int),
          boxes=jnp.array([[[0.0, 0, 9, 9]] * 2]),
      ),
  )
  labels = jnp.zeros((1, 2), int)
  loss = jax.jit(lambda: detection_losses._mask_loss(found, labels, truth))
  assert loss() == 0


def test_masks_need_bitmaps():
  truth = _truth(1)._replace(bitmaps=None)
  found = mock.Mock(mask_logits=np.zeros((1, 2, 28, 28, 3)))
  with pytest.raises(ValueError, match=r'truth.bitmaps, which are None'):
    detection_losses._mask_loss(found, None, truth)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'head': 'ssd'}, "head='ssd' is not one of"),
        (
            {'anchor_scales': 3},
            r'.anchor_scales. \(did you mean anchor_scale\?',
        ),
        ({'roi_samples': 3}, "roi_samples is for head='mask' or 'cascade'"),
        ({'channels': 2.5}, 'channels=2.5 must be a whole number of'),
        ({'anchor_scale': 0}, 'anchor_scale=0 must be above 0'),
        ({'least_score': 1.5}, r'least_score=1.5 must be in \[0, 1\)'),
        ({'head': 'mask', 'tower_depth': 3}, 'tower_depth'),
        ({'dense_head': True}, 'dense_head=True is for classifiers'),
    ],
)
def test_mistakes_are_named(options, message, as_users_run):
  with pytest.raises(ValueError, match=message):
    create_detector('rmt_t', **{'head': 'retina'} | options)


def test_an_image_without_a_batch_is_named(as_users_run):
  model = create_detector('rmt_t', head='retina')
  with pytest.raises(ValueError, match=r'width, 3\], not \(64, 65, 3\)'):
    model.apply({}, jnp.zeros((64, 65, 3)), train=False)


def test_a_backbone_of_one_map():
  with pytest.raises(ValueError, match='reads the maps of four'):
    create_detector('rmt_deit_s', head='retina')


@pytest.mark.parametrize('head', ['retina', 'mask', 'cascade'])
def test_the_smallest_anchors_have_32_pixels_as_released(head):
  """4 strides of 8 pixels, or 8 of 4."""
  model = create_detector('rmt_t', head=head, num_classes=3)
  assert model.head.smallest_anchor == 32
  half = create_detector('rmt_t', head=head, num_classes=3, anchor_scale=2.0)
  assert half.head.smallest_anchor == (16 if head == 'retina' else 8)
