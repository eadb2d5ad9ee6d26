"""Tests Mask R-CNN and its cascade against mmdetection's, in float64."""

import functools

import detection_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.models.dense import rcnn
from gswinrmt_jax.ops import roi_align
from gswinrmt_jax.ops.assignment import Truth
from gswinrmt_jax.train import detection_losses

pytestmark = pytest.mark.usefixtures('float64')

_SYSTEMS = ('mask_rcnn', 'cascade')


class _RCNN(rcnn.RCNN):
  """Trains on every box, as the reference does not sample."""

  rpn_samples: int = 10_000
  roi_samples: int = 68  # 40 proposals, 20 that the file adds, 8 objects

  @property
  def _most_positive(self):
    return 30


def _model(system):
  sizes = reference.text('config_json')
  rpn, test = (
      reference.text(f'{system}/{part}test_json') for part in ('rpn/', '')
  )
  cascade = system == 'cascade'
  return _RCNN(
      num_classes=sizes['classes'],
      channels=sizes['channels'],
      rpn_channels=sizes['head'],
      conv_channels=sizes['conv'],
      linear_channels=sizes['fc'],
      mask_channels=sizes['mask'],
      stages=rcnn.CASCADE_STAGES if cascade else rcnn.MASK_STAGES,
      candidates=rpn['nms_pre'],
      proposals=rpn['max_per_img'],
      detections=test['max_per_img'],
      least_score=test['score_thr'],
      dtype=np.float64,
  )


def _predict(model, maps):
  """Returns pyramid, RPN and proposals; anchors are masked, maps are not."""
  sizes, padded = reference.sizes(), reference.sizes('padded')
  levels, found, grid = model.predict(maps)
  found = found._replace(valid=grid.valid(padded))
  proposals = model.propose(found, grid, sizes, training=False)
  return levels, found, *proposals


def _with_extra(system, boxes):
  """Returns the proposals and those that the file adds, and which exist."""
  extra, valid = np.zeros((3, 20, 4)), np.zeros((3, 20), bool)
  for image in range(3):
    found = reference.arrays()[f'{system}/extra_proposals{image}']
    extra[image, : len(found)], valid[image, : len(found)] = found, True
  boxes = jnp.concatenate([boxes, extra], 1)
  return boxes, jnp.concatenate([jnp.ones((3, 40), bool), valid], 1)


@functools.cache
def _trained(system):
  """Returns loss, parts, gradients, outputs and BN statistics of the scene."""
  truth, model = reference.truth(), _model(system)
  variables = reference.variables(system)

  def predict(model, maps):
    levels, found, boxes, scores = _predict(model, maps)
    sizes = reference.sizes()
    stages = model.train_stages(
        levels,
        None,
        *_with_extra(system, boxes),
        sizes,
        truth,
        train=True,
    )
    outputs = rcnn.RCNNOutputs(model.rpn_targets(found, sizes, truth), stages)
    return outputs, (levels, boxes, scores)

  @jax.jit
  def run(params, maps):
    def loss(params, maps):
      (found, beside), updates = model.apply(
          variables | {'params': params},
          maps,
          method=predict,
          mutable=['batch_stats'],
      )
      total, parts = detection_losses.rcnn_loss(model, found, truth)
      return total, (parts, found, beside, updates)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, maps)

  return jax.device_get(run(variables['params'], reference.maps(system)))


@pytest.mark.parametrize('system', _SYSTEMS)
def test_training(system, want):
  (loss, (parts, *_, updates)), (grads, grad_maps) = _trained(system)
  reference.compare(parts['loss_rpn_cls'], want[f'{system}/rpn/loss_cls'])
  reference.compare(parts['loss_rpn_bbox'], want[f'{system}/rpn/loss_bbox'])
  reference.compare(loss, want[f'{system}/loss'])
  reference.check_tree(grads, system, 'grad', want, 1e-8)
  for level, grad in enumerate(grad_maps):
    reference.compare(grad, want[f'{system}/grad_map{level}'], within=1e-8)
  if system == 'cascade':
    stats = updates['batch_stats']
    reference.check_tree(stats, system, 'after', want, 1e-10)


@pytest.mark.parametrize('system', _SYSTEMS)
def test_proposals(system, want):
  (_, (_, found, (levels, boxes, scores), _)), _ = _trained(system)
  assigned = want[f'{system}/rpn/assigned']
  np.testing.assert_array_equal(found.rpn.assigned, assigned)
  for image in range(3):
    name = f'{system}/rpn/'
    reference.compare(boxes[image], want[f'{name}proposals{image}'])
    reference.compare(scores[image], want[f'{name}scores{image}'])
  if system == 'cascade':
    return
  for level, x in enumerate(levels):
    reference.compare(x, want[f'{system}/level{level}'])
  reference.compare(levels[-1][:, ::2, ::2], want[f'{system}/level4'])
  logits, deltas = found.rpn.logits[..., 0], found.rpn.deltas
  reference.compare(logits, want[f'{system}/rpn/logits'])
  reference.compare(deltas, want[f'{system}/rpn/deltas'])


@pytest.mark.parametrize('system', _SYSTEMS)
def test_stages(system, want):
  (_, (parts, found, *_)), _ = _trained(system)
  cascade = system == 'cascade'
  for index, stage in enumerate(found.stages):
    name = f'{system}/stage{index}' if cascade else f'{system}/roi'
    prefix = f's{index}.' if cascade else ''
    for part in ('loss_cls', 'loss_bbox', 'loss_mask'):
      reference.compare(parts[prefix + part], want[f'{name}/{part}'], part)
    rois, valid = stage.rois, stage.rois.valid
    boxes = [
        np.concatenate(
            [np.full((valid[i].sum(), 1), i), rois.boxes[i][valid[i]]], 1
        )
        for i in range(3)
    ]
    reference.compare(np.concatenate(boxes), want[f'{name}/rois'])
    np.testing.assert_array_equal(rois.labels[valid], want[f'{name}/labels'])
    reference.compare(stage.logits[valid], want[f'{name}/logits'])
    deltas = stage.deltas[valid].reshape(valid.sum(), -1)
    reference.compare(deltas, want[f'{name}/deltas'])
    positive = rois.assigned > 0
    assert positive.sum() == want[f'{name}/mask_count']
    count = stage.mask_logits.shape[1]
    assert not positive[:, count:].any()
    own = np.take_along_axis(
        stage.mask_logits,
        rois.labels[:, :count].clip(0, 2)[..., None, None, None],
        -1,
    )[positive[:, :count]]
    if f'{name}/mask_logits' in want:
      reference.compare(own[:6, ..., 0], want[f'{name}/mask_logits'])


@pytest.mark.parametrize('system', _SYSTEMS)
def test_mask_targets(system, want):
  truth = jax.device_get(reference.truth())
  (_, (_, found, *_)), _ = _trained(system)
  targets = jax.jit(functools.partial(roi_align.mask_targets, bins=28))
  parts = []
  for stage in found.stages:
    image, row = np.nonzero(stage.rois.assigned > 0)
    number = stage.rois.assigned[image, row] - 1
    parts.append(
        (
            truth.bitmaps[image, number],
            truth.frames[image, number],
            stage.rois.boxes[image, row],
        )
    )
  # All stages at once are compiled once.
  every = np.asarray(targets(*map(np.concatenate, zip(*parts, strict=True))))
  ends = np.cumsum([len(boxes) for *_, boxes in parts])[:-1]
  for index, got in enumerate(np.split(every, ends)):
    name = f'{system}/stage{index}' if system == 'cascade' else f'{system}/roi'
    bits = np.unpackbits(want[f'{name}/mask_targets'])[: got.size]
    np.testing.assert_array_equal(np.ravel(got), bits)


@pytest.mark.parametrize(
    ('stage', 'of_proposal'),
    [(rcnn.MASK_STAGES[0], 2), (rcnn.CASCADE_STAGES[0], 1)],
)
def test_objects_join_the_boxes_after_the_assignment(stage, of_proposal):
  """The proposal has IoUs of 0.8 and 0.75 with the first two objects.

  With low quality, the second takes it, since it has no better proposal. Equal
  objects find themselves each; the fifth is empty, the last row is unused.
  """
  twin = [200, 200, 240, 240]
  objects = [[0, 0, 100, 100], [0, 0, 100, 60], twin, twin, [9, 9, 9, 20], twin]
  truth = Truth(
      jnp.array(objects, float),
      jnp.array([0, 1, 2, 0, 1, 2]),
      jnp.array([True] * 5 + [False]),
  )
  proposals = jnp.array([[0.0, 0, 100, 80], [300, 300, 310, 310]])
  draw = functools.partial(_model('mask_rcnn')._draw, rule=stage.rule)
  rois = jax.jit(draw)(truth, proposals, jnp.ones(2, bool), None)
  used = rois.valid
  assert rois.assigned[used].tolist() == [1, 2, 3, 4, of_proposal, 0]
  assert rois.labels[used].tolist() == [0, 1, 2, 0, of_proposal - 1, 3]
  assert rois.is_truth[used].tolist() == [True] * 4 + [False] * 2
  np.testing.assert_array_equal(rois.boxes[used][4:], proposals)


@functools.cache
def _detection(system):
  def detect(model, maps, scale, sizes):
    levels, _, boxes, scores = _predict(model, maps)
    return model.detect(levels, None, boxes, scores * scale, sizes)

  return jax.jit(functools.partial(_model(system).apply, method=detect))


@functools.cache
def _detected(system, scale=1.0, of_sizes=1):
  """Returns detections; scores of proposals, and image sizes, are scaled."""
  variables, maps = reference.variables(system), reference.maps(system)
  sizes = of_sizes * reference.sizes()
  return jax.device_get(_detection(system)(variables, maps, scale, sizes))


@pytest.mark.parametrize('system', _SYSTEMS)
def test_detection(system, want):
  found = _detected(system)
  for image, scale in enumerate(want['scene/scale_factor']):
    name = f'{system}/det{image}'
    boxes, masks = found.boxes[image] / scale, found.masks[image]
    np.testing.assert_array_equal(found.labels[image], want[f'{name}/labels'])
    reference.compare(found.scores[image], want[f'{name}/scores'])
    reference.compare(boxes, want[f'{name}/boxes'])
    reference.compare(masks[:4], want[f'{name}/masks28'])
    size = tuple(want[f'{name}/shape'].tolist())
    soft = roi_align.paste(masks[:4], boxes[:4], size)
    reference.compare(soft[:1], want[f'{name}/pasted_soft'])
    bits = np.unpackbits(want[f'{name}/pasted'])[: soft.size]
    np.testing.assert_array_equal(np.ravel(soft >= 0.5), bits)


def test_unused_proposals_and_empty_boxes_are_no_detections():
  assert not _detected('mask_rcnn', 0.0).scores.any()
  clipped = _detected('mask_rcnn', of_sizes=0)  # All boxes are empty.
  assert not clipped.scores.any()


def test_proposals_whose_scores_are_nan_are_not_nothing():
  found = _detected('mask_rcnn', np.nan)
  assert np.isnan(found.scores[:, 0]).all()
