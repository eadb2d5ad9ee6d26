"""What the fields of a recipe may be."""

import fuzz
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import limits


def _recipe(field, value):
  config = recipes.digits('rmt_compact').unlock()
  *sections, name = field.split('.')
  (config[sections[0]] if sections else config)._fields[name] = value
  return config


def test_every_field_has_its_place():
  config = recipes.cifar10('rmt_compact')
  fields = {
      field
      for field in fuzz.leaves(config)
      if field == 'model.name' or not field.startswith('model.')
  }
  assert fields == limits.FIELDS.keys()
  limits.check(config)


@pytest.mark.parametrize(
    ('field', 'value', 'said'),
    [
        (
            'seed',
            '7',
            "config.seed is '7': must be a whole number up to 9,22",
        ),
        ('seed', True, 'whole number'),
        ('seed', 1.0, 'whole number'),
        ('batch_size', 2**20 + 1, 'up to 1,048,576'),
        ('data.name', 7, 'data.name is 7: must be text of up to 1,024'),
        ('data.dir', 'a\0b', 'must be text'),
        ('data.dir', '\ud800', 'must be text'),
        ('data.name', 'x' * 1025, r'x \.\.\.: must be text'),
        ('augment.flip', 1, 'augment.flip is 1: must be True or False'),
        ('ema_decay', 'a', "ema_decay is 'a': must be a number"),
        ('ema_decay', False, 'must be a number'),
        ('ema_decay', 1e39, 'must be a number'),
        ('data.crop_scale', (0.5,), 'must be two numbers'),
        ('data.crop_scale', (0.5, 'a'), 'must be two numbers'),
        ('data.crop_scale', 0.5, 'must be two numbers'),
        ('model.widths', (8,) * 999, r'model.widths is \(8, .*not too long'),
        ('augment', 3, 'config.augment must be a group of fields'),
    ],
)
def test_what_a_field_cannot_be(field, value, said):
  with pytest.raises(UserError, match=said) as caught:
    limits.check(_recipe(field, value))
  assert '\n' not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('seed', 2**63 - 1),
        ('ema_decay', 1),
        ('ema_decay', float('nan')),  # refused by its own check
        ('data.dir', '/a\udc80'),  # a name that is not UTF-8
        ('data.crop_scale', (1, 0.5)),
    ],
)
def test_what_it_can(field, value):
  limits.check(_recipe(field, value))


def test_an_older_recipe_lacks_fields():
  config = recipes.cifar10('rmt_compact').unlock()
  del config['augment'], config['seed'], config.data['name']
  limits.check(config)
  limits.need(config, 'data.dir', 'dtype')
  for field in ('seed', 'data.name'):
    with pytest.raises(UserError, match=f'has no config.{field}'):
      limits.need(config, 'dtype', field)
