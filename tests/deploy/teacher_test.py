"""Tests writing label maps with a model that has a dense head."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest
import random_variables
import tiny_parts

from gswinrmt_jax.augment import batch
from gswinrmt_jax.commands import guard, main
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import datasets, records, token_labels
from gswinrmt_jax.deploy import teacher
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.weights import card as card_lib
from gswinrmt_jax.weights import load as weights_lib


def _records(size):
  return tiny_parts.load('tiny', 'val', '', image_size=size, crop=0.0)


@pytest.fixture
def weights(monkeypatch):
  """A teacher of one block, on tiny data of 11 records."""
  create_model = factory.create_model
  tiny_parts.install(monkeypatch)
  monkeypatch.setattr(factory, 'create_model', create_model)
  source = records.Arrays(
      tiny_parts.SPLITS['val'].image, tiny_parts.SPLITS['val'].label
  )
  monkeypatch.setattr(datasets, 'open_source', lambda name, split, *_: source)
  monkeypatch.setattr(
      datasets,
      'load',
      # Maps are of the whole image.
      lambda *args, **how: _records(how['image_size'])
      if not how.get('crop')
      else None,
  )
  fields = {
      'widths': (8,),
      'depths': (1,),
      'num_heads': (1,),
      'patch_size': 4,
      'dense_head': True,
  }
  card = card_lib.Card(
      name='rmt_deit_s',
      fields=factory.resolve('rmt_deit_s', fields),
      num_classes=3,
      image_size=(8, 12),
      mean=(0.4,) * 3,
      std=(0.3,) * 3,
  )
  variables = random_variables.nested(card.make_model(), (1, 8, 12, 3))
  return weights_lib.Weights(variables, card, 'a teacher', pathlib.Path())


def test_maps_are_the_softmax_of_the_dense_logits(
    weights, tmp_path, monkeypatch
):
  monkeypatch.setattr(teacher, '_BATCH', 4)  # the last batch is padded
  assert teacher._TOP == 5
  monkeypatch.setattr(teacher, '_TOP', 2)
  folder = tmp_path / 'maps'
  monkeypatch.setattr(datasets, 'own_splits', lambda *_: {'train': 'val'})
  teacher.write_token_labels(weights, folder, name='tiny', split='auto')
  maps = token_labels.open_maps(folder, name='tiny', split='val')
  assert maps.index.shape == maps.score.shape == (11, 2, 3, 2)
  image = batch.normalize(
      jax.numpy.asarray(_records((8, 12)).image), (0.4,) * 3, (0.3,) * 3
  )
  model = weights.card.make_model()
  _, dense = jax.jit(
      lambda image: model.apply(
          weights.variables, image, train=False, method='class_and_dense_logits'
      )
  )(image)
  share = np.exp(np.float64(dense))
  share /= share.sum(-1, keepdims=True)
  order = np.argsort(-share, -1)[..., :2]
  np.testing.assert_array_equal(maps.index, order)
  expected = np.take_along_axis(share, order, -1)
  np.testing.assert_allclose(maps.score, expected, rtol=2e-3)


@pytest.mark.parametrize(
    ('changes', 'size', 'said'),
    [
        ({'fields': None}, None, 'has no dense head'),
        ({'num_classes': 4}, None, 'has 4 classes'),
        (
            {'class_names': ('a', 'c', 'b')},
            None,
            "class 1 is 'c' in .*, and 'b' in tiny: .* in the same order",
        ),
        ({'image_size': (8, 10)}, None, 'images of 10 x 8 .* multiples of 4'),
        ({}, 10, 'images of 10 x 10 pixels are not a whole number of tokens'),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(
    changes, size, said, weights, tmp_path
):
  if 'fields' in changes:
    changes = {'fields': {**weights.card.fields, 'dense_head': False}}
  card = dataclasses.replace(weights.card, **changes)
  with pytest.raises(UserError, match=said) as caught:
    teacher.write_token_labels(
        dataclasses.replace(weights, card=card),
        tmp_path / 'maps',
        name='tiny',
        split='val',
        image_size=size,
    )
  assert '\n' not in str(caught.value)


def test_a_batch_divides_over_the_devices(weights, tmp_path, monkeypatch):
  sizes = []

  def eval_batches(records, *, batch_size):
    sizes.append(batch_size)
    return batches(records, batch_size=batch_size)

  batches = batches_lib.eval_batches
  monkeypatch.setattr(batches_lib, 'eval_batches', eval_batches)
  monkeypatch.setattr(mesh.Devices, 'rounded_up', lambda _, size: size + 2)
  teacher.write_token_labels(
      weights, tmp_path / 'maps', name='tiny', split='val'
  )
  assert sizes == [66]


@pytest.mark.parametrize(
    ('argv', 'load', 'write'),
    [
        (
            'r m --data=d',
            {'step': 'best', 'which': None},
            {'split': 'auto', 'data_dir': '', 'image_size': None},
        ),
        (
            'r m --data=d --step=7 --weights=ema --split=val --data-dir=e '
            '--image-size=64',
            {'step': 7, 'which': 'ema'},
            {'split': 'val', 'data_dir': 'e', 'image_size': 64},
        ),
    ],
)
def test_arguments_of_the_command(argv, load, write, monkeypatch):
  calls = []

  def note(*args, **settings):
    calls.append((args, settings))
    return 'weights'

  monkeypatch.setattr(weights_lib, 'load', note)
  monkeypatch.setattr(teacher, 'write_token_labels', note)
  assert main.main(['label-maps', *argv.split()]) == 0
  assert calls == [
      ((pathlib.Path('r'),), {**load, 'warn': guard.complain}),
      (('weights', pathlib.Path('m')), {'name': 'd', **write}),
  ]
