"""Tests what recipes and cards say about detectors."""

import json

import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.weights import card as card_lib


@pytest.mark.parametrize(
    ('head', 'released'),
    [
        ('retina', {'channels': 256, 'tower_depth': 4, 'anchor_scale': 4.0}),
        (
            'mask',
            {
                'linear_channels': 1024,
                'train_candidates': 2000,
                'train_proposals': 1000,
                'proposals': 1000,
                'roi_samples': 512,
            },
        ),
        ('cascade', {'conv_channels': 256, 'train_proposals': 2000}),
    ],
)
def test_recipe_and_card_make_the_same_detector(head, released):
  recipe = recipes.detection('rmt_compact', head)
  changed = {'detections': 7, 'candidates': 9, 'anchor_scale': 1.5}
  if head != 'retina':
    changed |= {
        'proposals': 5,
        'roi_samples': 6,
        'train_candidates': 3,
        'train_proposals': 4,
    }
  recipe.detector.update(changed | {'round_extents': 32})
  recipes.check_used(recipe, recipe)
  config = recipes.resolve(recipe)
  head_fields = recipes.head_fields(config)
  wanted = released | changed | {'head': head, 'round_extents': 32}
  assert wanted.items() <= head_fields.items()
  assert recipes.task(config) == 'detection'
  stored = json.loads(json.dumps(config.to_dict()))
  assert recipes.from_json(stored, 'config.json') == config
  model = recipes.make_model(config, 3, (64, 96, 3))
  assert model.round_extents == 32
  assert changed == {name: getattr(model.head, name) for name in changed}
  fields = config.model.to_dict()
  card = card_lib.Card(
      name=fields.pop('name'),
      fields=fields,
      num_classes=3,
      dense=head_fields,
      image_size=(64, 96),
      mean=(0.5, 0.5, 0.5),
      std=(0.2, 0.2, 0.2),
      fit_within=(1333, 800),
      dtype=config.dtype,
  )
  read = card_lib.from_dict(json.loads(json.dumps(card.to_dict())), 'a card')
  assert (read.task, read.fit_within) == ('detection', (1333, 800))
  assert read.make_model() == model


@pytest.mark.parametrize(
    ('field', 'value', 'said'),
    [
        ('label_smoothing', 0.1, 'must be 0.0 for a detector'),
        ('data.storage', 'memory', "must be 'decode' for a detector"),
        ('segmenter.channels', 9, 'must be -1 without config.segmenter.head'),
        ('segmenter.head', 'fpn', 'one of them must be empty'),
        (
            'detector.channels',
            0,
            'config.detector.channels=0 must be a whole number of',
        ),
        (
            'detector.anchor_scale',
            -0.5,
            'config.detector.anchor_scale=-0.5 must be above 0',
        ),
        ('model.dense_head', True, 'must be False for a detector'),
    ],
)
def test_what_a_detector_is_not_trained_with_is_refused(field, value, said):
  config = recipes.detection('rmt_compact', 'retina')
  config.update_from_flattened_dict({field: value})
  with pytest.raises(UserError, match=said):
    recipes.make_model(recipes.resolve(config), 3, (64, 64, 3))


def test_candidates_are_those_of_the_release():
  for head in ('retina', 'mask', 'cascade'):
    config = recipes.resolve(recipes.detection('rmt_s', head))
    assert recipes.head_fields(config)['candidates'] == 1000


def test_fields_of_another_head_are_refused():
  recipe = recipes.detection('rmt_compact', 'retina')
  changed = recipes.detection('rmt_compact', 'retina')
  changed.detector.mask_channels = 8
  said = (
      'no effect: it needs config.detector.head=mask or cascade; without it, '
      'leave it at -1'
  )
  with pytest.raises(UserError, match=said):
    recipes.check_used(changed, recipe)
  classifier = recipes.defaults('rmt_compact')
  classifier.detector.channels = 8
  with pytest.raises(UserError, match='must be -1 without'):
    recipes.check(classifier)


@pytest.mark.parametrize(
    ('name', 'rate', 'epochs', 'batch', 'decay'),
    [
        ('retina_b', 4e-4, (8, 11, 12), 16, 'all'),
        ('mask_b', 4e-4, (8, 11, 12), 16, 'not_norms'),
        ('mask_s_3x', 4e-4, (27, 33, 36), 16, 'not_norms'),
        ('mask_b_3x', 2e-4, (27, 33, 36), 16, 'not_norms'),
        ('mask_l_3x', 2e-4, (27, 33, 36), 8, 'not_norms'),
        ('cascade_s_3x', 4e-4, (27, 33, 36), 16, 'not_norm_layers'),
        ('cascade_b_3x', 2e-4, (27, 33, 36), 16, 'not_norm_layers'),
    ],
)
def test_recipes_are_those_of_the_release(name, rate, epochs, batch, decay):
  config = recipe_files.load(f'coco_detection:{name}', [])
  optimizer = config.optimizer
  assert (optimizer.learning_rate, optimizer.decay) == (rate, decay)
  assert (*optimizer.drop_epochs, config.num_epochs) == epochs
  assert config.batch_size == batch
  assert config.augment.multi_scale == name.endswith('3x')
  assert optimizer.weight_decay == (1e-4 if 'retina' in name else 0.05)
