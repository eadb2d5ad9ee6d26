"""Tests RetinaNet against mmdetection's, in float64."""

import functools
import types

import detection_reference as reference
import jax
import numpy as np
import pytest

from gswinrmt_jax.models.dense import retinanet
from gswinrmt_jax.train import detection_losses

pytestmark = pytest.mark.usefixtures('float64')


def _model():
  sizes, limits = reference.text('config_json'), reference.text(
      'retina/test_json'
  )
  return retinanet.RetinaNet(
      num_classes=sizes['classes'],
      channels=sizes['channels'],
      tower_channels=sizes['head'],
      candidates=limits['nms_pre'],
      detections=limits['max_per_img'],
      least_score=limits['score_thr'],
      dtype=np.float64,
  )


def _predict(model, maps):
  """Returns what the heads predict; the reference masks anchors, not maps."""
  found, grid = model.predict(maps)
  return found._replace(valid=grid.valid(reference.sizes('padded'))), grid


@functools.cache
def _trained():
  """Returns loss, parts, gradients and outputs of the scene."""
  truth = reference.truth()

  def predict(model, maps):
    return _predict(model, maps)[0].with_targets(truth, retinanet.RULE)

  @jax.jit
  def run(params, maps):
    def loss(params, maps):
      found = _model().apply({'params': params}, maps, method=predict)
      total, parts = detection_losses.retina_loss(found, truth)
      return total, (parts, found)

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, maps)

  params = reference.variables('retina')['params']
  return jax.device_get(run(params, reference.maps('retina')))


def test_training(want):
  (loss, (parts, found)), (grads, grad_maps) = _trained()
  reference.compare(found.logits, want['retina/logits'])
  reference.compare(found.deltas, want['retina/deltas'])
  np.testing.assert_array_equal(found.assigned, want['retina/assigned'])
  assert parts['positives'] == want['retina/divisor']
  for name in ('loss_cls', 'loss_bbox'):
    reference.compare(parts[name], want[f'retina/{name}'].sum(), name)
  reference.compare(loss, want['retina/loss'])
  reference.check_tree(grads, 'retina', 'grad', want, 1e-8)
  for level, grad in enumerate(grad_maps):
    reference.compare(grad, want[f'retina/grad_map{level}'], within=1e-8)


def test_detection(want):
  def detect(model, maps):
    return model.detect(*_predict(model, maps), reference.sizes())

  run = jax.jit(functools.partial(_model().apply, method=detect))
  variables, maps = reference.variables('retina'), reference.maps('retina')
  found = jax.device_get(run(variables, maps))
  for image, scale in enumerate(want['scene/scale_factor']):
    name = f'retina/det{image}'
    np.testing.assert_array_equal(found.labels[image], want[f'{name}/labels'])
    reference.compare(found.scores[image], want[f'{name}/scores'])
    reference.compare(found.boxes[image] / scale, want[f'{name}/boxes'])


def test_labels_that_are_no_classes_are_not_background():
  truth, (_, (_, found)), _ = reference.truth(), *_trained()
  model = types.SimpleNamespace(head=_model())
  classes = model.head.num_classes
  run = jax.jit(
      functools.partial(detection_losses.detection_loss, model, found)
  )
  for label, trained in ((classes - 1, True), (classes, False), (-1, False)):
    labels = np.full_like(truth.labels, label)
    other = truth._replace(labels=np.where(truth.valid, labels, classes))
    loss, _ = run(other)
    assert np.isfinite(loss) == trained
    loss, _ = run(other._replace(valid=other.valid.astype(np.int32)))
    assert np.isfinite(loss) == trained
