"""Tests detectors in training, resuming and evaluation."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
import random_variables
import several
import tiny_dense
import tiny_objects

from gswinrmt_jax.augment import batch as augment_lib
from gswinrmt_jax.data import detection, resizing
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import detection as scores_lib
from gswinrmt_jax.ops.assignment import Truth
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import augmentation, losses, train_loop
from gswinrmt_jax.weights import load


@pytest.fixture(name='runs', scope='module')
def _runs(launcher, tmp_path_factory):
  """Returns a killed and resumed run, an unbroken one, and its output."""
  folder = tmp_path_factory.mktemp('detectors')
  return tiny_dense.killed_and_unbroken(launcher, folder, 'tiny_objects')


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
  tiny_objects.install(monkeypatch)


@pytest.mark.parametrize('split', ['train', 'val', 'test'])
def test_a_split_without_objects_is_told_before_training(
    split, tmp_path, monkeypatch
):
  """The fourth object of an image is a crowd, here the only one."""
  scenes = tiny_objects.scenes(3, [0, 4])
  of_crowd = detection.Objects(
      *(x[3:] for x in scenes.objects[1][:4]), scenes.objects[1].masks[3:]
  )
  scenes = detection.Scenes(scenes.images, [scenes.objects[0], of_crowd])
  monkeypatch.setitem(tiny_objects.SPLITS, split, scenes)
  with pytest.raises(
      UserError, match=f"{split}_split: no image of '{split}' has an object"
  ):
    train_loop.train(tiny_objects.recipe(), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_killed_run_resumes_bit_for_bit(runs):
  tiny_dense.check_equal(*runs[:2])


def test_logs_and_summary_have_losses_and_average_precision(runs):
  _, run, said = runs
  entries = metrics_log.read_metrics(run)
  parts = {'loss', 'loss_cls', 'loss_bbox', 'positives'}
  assert parts <= entries[0].keys()
  epochs = [entry for entry in entries if entry['kind'] == 'epoch']
  assert {'train_loss_cls', 'val_ap', 'val_ap50'} <= epochs[0].keys()
  assert 'val_accuracy' not in epochs[0] and 'val_loss' not in epochs[0]
  best = max(epochs, key=lambda entry: (entry['val_ap'], entry['epoch']))
  summary = json.loads((run / 'summary.json').read_text())
  assert summary['best']['epoch'] == best['epoch']
  assert summary['best']['val_ap'] == best['val_ap'] > 0
  classes = [ap for ap in summary['last']['test_class_ap'] if ap is not None]
  assert np.mean(classes) == pytest.approx(summary['last']['test_ap'])
  assert f'box AP {epochs[0]["val_ap"]:.2%}' in said
  assert '\nvalidation box AP' in said
  assert (run / 'curves.png').exists()
  with PIL.Image.open(run / 'augmented_batch.png') as image:
    assert image.size[0] > 100


def test_every_image_counts_once_on_any_number_of_devices(runs, tmp_path):
  """Seven padded images of several sizes, in batches of three and of nine."""
  run = runs[1]
  on_three = several.start(
      'tiny_objects.py', run, tmp_path / '3.json', devices=3
  )
  options = ['--batch-size=9']
  assert tiny_dense.evaluate(run, tmp_path / '1.json', *options) == 0
  several.said(on_three)
  one, three = (
      json.loads((tmp_path / f'{n}.json').read_text()) for n in (1, 3)
  )
  wanted = _by_hand(run)
  names = {'ap', 'ap50', 'ap75', 'ap_small', 'class_ap'}
  for report in (one, three):
    assert report['images'] == 7 and 'not_finite' not in report
    for name in names:
      assert report[name] == pytest.approx(wanted[name], abs=1e-6)
  assert one['ap'] > 0
  logged = metrics_log.read_metrics(run)[-1]
  assert logged['val_ap'] == pytest.approx(one['ap'], abs=1e-6)


def _by_hand(run):
  """Returns the scores of detections that are found image by image."""
  weights, source = load.load(run, step='latest'), tiny_objects.SPLITS['val']
  results, card = [], weights.card
  model = card.make_model()

  @jax.jit
  def predict(variables, pixels, extents):
    image = augment_lib.normalize(pixels, card.mean, card.std)
    return model.apply(variables, image, train=False, extents=extents)

  for row, image in enumerate(source.images):
    height, width = image.shape[:2]
    across, down = resizing.size_within((width, height), (72, 64))
    # In one canvas: each bare image would be compiled. `extents_test` compares
    # both.
    pixels = np.zeros((1, 72, 72, 3), np.uint8)
    pixels[0, :down, :across] = resizing.resize(
        PIL.Image.fromarray(image), (across, down)
    )
    extents = np.array([[down, across]], np.int32)
    found = predict(weights.variables, pixels, extents)
    boxes, scores, labels = (np.asarray(x[0]) for x in found[:3])
    for box, score, label in zip(boxes, scores, labels, strict=True):
      x0, y0, x1, y1 = box * np.array([width / across, height / down] * 2)
      if score > 0:
        results.append(
            {
                'image_id': row + 1,
                'category_id': int(label) + 1,
                'bbox': [x0, y0, x1 - x0, y1 - y0],
                'score': float(score),
            }
        )
  truth = scores_lib.dataset([*source.described()], 2)
  return scores_lib.average_precision(truth, results, 'bbox')


def test_training_sees_the_normalisation_of_the_data():
  """And, if wanted, colours that are distorted, in the image alone."""
  info, key = tiny_objects.INFO, jax.random.key(0)
  augment, distort = (
      augmentation.from_config(tiny_objects.recipe(**change), info, None, None)
      for change in ({}, {'augment.photometric': True})
  )
  pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
  batch = {
      'image': jnp.asarray(pixels),
      'extents': jnp.array([[4, 5], [3, 5]]),
      'boxes': jnp.zeros((2, 1, 4)),
      'labels': jnp.zeros((2, 1), jnp.int32),
      'valid': jnp.zeros((2, 1), bool),
  }
  image, _ = augment(key, batch, 0)
  want = (pixels / 255 - np.array(info.mean)) / np.array(info.std)
  want[1, 3] = 0  # padding
  np.testing.assert_allclose(image, want, rtol=1e-5, atol=1e-6)
  other, _ = distort(key, batch, 0)
  assert (other[:, :3] != want[:, :3]).mean() > 0.9 and not other[1, 3].any()


@functools.cache
def _gradient(image_shape):
  """Returns parameters, and what computes the loss, its parts and gradient."""
  model = tiny_objects.Detector()
  params = random_variables.nested(model, (1, *image_shape))['params']

  @jax.jit
  def gradient(params, image, targets):
    def loss_of(params):
      def apply(image, **how):
        return model.apply({'params': params}, image, train=True, **how), {}

      loss, (parts, _) = losses.objects_loss(
          apply, image, targets, None, model=model
      )
      return loss, parts

    return jax.value_and_grad(loss_of, has_aux=True)(params)

  return params, gradient


@pytest.mark.parametrize('counts', [[0, 0, 0], [8, 0, 1]])
def test_batches_without_or_full_of_objects_have_finite_gradients(counts):
  """An image of as many objects as there are rows, and images without any."""
  source = tiny_objects.scenes(5, counts)
  for objects in source.objects:
    objects.crowds[:] = False
  records = detection.AnnotatedImages(
      source, training=detection.Training(False)
  )
  assert records.most == 8
  rows = [records.read(row, np.random.default_rng(0)) for row in range(3)]
  batch = jax.tree.map(lambda *x: jnp.stack(x), *rows)
  truth = Truth(batch['boxes'], batch['labels'], batch['valid'])
  targets = {'extents': batch['extents'], 'truth': truth}
  image = jnp.asarray(batch['image'], jnp.float32) / 255
  params, gradient = _gradient(records.image_shape)
  (loss, parts), grads = gradient(params, image, targets)
  assert np.isfinite(loss) and loss > 0
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))
  if not any(counts):
    assert parts['positives'] == 3 and parts['loss_bbox'] == 0
