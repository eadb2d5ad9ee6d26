"""Tests the augmentation fields of recipes, and the readings of Table 2."""

import ast
import re

import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import rand_augment
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import cost, factory

TABLE2 = [
    f'{data}_{model}'
    for data in ('cifar10', 'mini_imagenet')
    for model in ('rmt', 'retention', 'swat')
]
SMALL = ['cifar10_small:retention', 'cifar10_small:rmt', 'cifar10_95:swat']
# In the order of `_values`.
_TORCHVISION = ((0.02, 0.33), (0.3, 3.3))
_TIMM = ((0.02, 1 / 3), (0.3, 10 / 3))
READINGS = {
    'torchvision': (
        *(2, 'torchvision', 9, 0, 1, 0.25, 'zeros', 0.8, 1.0, 0.2),
        *_TORCHVISION,
    ),
    'deit': (2, 'timm', 9, 0.5, 0.5, 0.25, 'noise', 0.8, 1.0, 1.0, *_TIMM),
    'plain': (0, 'timm', 9, 0.5, 0.5, 0.0, 'noise', 0.0, 0.0, 1.0, *_TIMM),
}


def _values(config):
  names = 'ops set magnitude std prob'.split()
  return (
      *(config.augment[f'rand_augment_{name}'] for name in names),
      config.augment.erase_prob,
      config.augment.erase_fill,
      config.augment.mixup_alpha,
      config.augment.cutmix_alpha,
      config.augment.mix_prob,
      config.augment.erase_area,
      config.augment.erase_aspect,
  )


@pytest.mark.parametrize(
    ('name', 'reading'),
    [(TABLE2[0], reading) for reading in READINGS]
    + [(name, 'plain') for name in TABLE2[1:]],
)
def test_an_argument_chooses_the_reading(name, reading):
  config = recipe_files.load(f'{name}:{reading}', [])
  recipes.check(config)
  assert _values(config) == READINGS[reading]
  fitted = reading == 'torchvision'
  assert config.optimizer.learning_rate == (3e-4 if fitted else 1e-4)
  assert config.model.linear_start == ('uniform' if fitted else None)
  # Nothing else in the recipe changes, crop and flip included.
  plain = recipe_files.load(name, [])
  for field in ('crop_padding', 'flip', 'mix_off_epochs'):
    assert config.augment[field] == plain.augment[field]
  fields, others = config.to_dict(), plain.to_dict()
  for either in (fields, others):
    del either['augment'], either['optimizer']['learning_rate']
    del either['model']['linear_start']
  assert fields == others


def test_without_an_argument_the_reading_is_the_default():
  config = recipe_files.load('cifar10_rmt', [])
  assert config == recipe_files.load('cifar10_rmt:torchvision', [])
  # The recipe of the release does not follow the default.
  released = recipe_files.load('imagenet_rmt:t', [])
  assert _values(released) == READINGS['deit']


def test_a_reading_runs_as_a_smoke_test_too():
  config = recipe_files.load('cifar10_swat:torchvision,smoke', [])
  assert config.data.name == 'digits' and config.num_epochs == 1
  assert _values(config) == READINGS['torchvision']
  config = recipe_files.load('ablation:retention,no_gate,plain,smoke', [])
  assert config.data.name == 'digits' and config.augment.mixup_alpha == 0


def test_other_arguments_are_refused():
  with pytest.raises(
      UserError, match="'torchvision', 'deit', 'plain', 'smoke'"
  ):
    recipe_files.load('cifar10_rmt:timm', [])
  with pytest.raises(UserError, match=r"\(known, in this order: 'smoke'\)"):
    recipe_files.load('digits_rmt:plain', [])


def test_timms_operations_have_a_smaller_largest_magnitude():
  config = recipes.defaults('rmt_compact')
  config.augment.rand_augment_magnitude = 11.0
  with pytest.raises(UserError, match="to 10 with the operations of 'timm'"):
    recipes.check(config)


@pytest.mark.parametrize(
    'changes, text',
    [
        ({'magnitude': 9.5}, 'magnitude is 9.5: must be a whole number with'),
        ({'std': 0.5}, "std is 0.5: must be 0 with the operations of 'torchv"),
        (
            {'prob': 0.5},
            "prob is 0.5: must be 1 with the operations of 'torchv",
        ),
        ({'magnitude': 30.0}, None),
    ],
)
def test_torchvisions_operations_have_no_spread(changes, text):
  config = recipe_files.load('cifar10_rmt:torchvision', [])
  for name, value in changes.items():
    config.augment[f'rand_augment_{name}'] = value
  if text is None:
    recipes.check(config)
    return
  with pytest.raises(UserError, match=text):
    recipes.check(config)
  config.augment.rand_augment_ops = 0  # then it is unused
  recipes.check(config)


@pytest.mark.parametrize('name', SMALL)
def test_recipes_for_small_images_keep_their_protocol(name):
  """Whatever the default reading of the paper's protocol is."""
  config = recipe_files.load(name, [])
  small = name.startswith('cifar10_small')
  ops, mixed = (1, 0.0) if small else (2, 0.5)
  expected = list(READINGS['torchvision'])
  expected[0], expected[9] = ops, mixed
  assert _values(config) == tuple(expected)
  training = config.optimizer.name, config.optimizer.learning_rate
  assert training == (('muon', 3e-3) if small else ('adamw', 1e-3))
  assert config.model.linear_start == 'uniform'


def test_recipes_may_name_every_set_of_operations():
  sets = recipes.FIELDS['augment.rand_augment_set'].choices
  assert set(sets) == set(rand_augment.SETS)


@pytest.mark.slow
@pytest.mark.parametrize('name', SMALL)
def test_recipes_for_small_images_cost_what_they_say(name):
  path = recipe_files.folder() / f'{name.partition(":")[0]}.py'
  config = recipes.resolve(recipe_files.load(name, []))
  fields = {k: v for k, v in config.model.items() if k != 'name'}
  model = factory.create_model(config.model.name, num_classes=10, **fields)
  assert model.arch.strides == (2, 4, 8)
  found = cost.count(model, (32, 32))
  text = ast.get_docstring(ast.parse(path.read_text()))
  family = name.partition(':')[2]
  (line,) = re.findall(
      rf'^  .*\b{family}\b.* [\d,]{{9,}} .*$', text, re.MULTILINE
  )
  assert f'{found.parameters:,}' in line and f'{found.product_macs:,}' in line
  if 'PFLOP' in line:
    operations = 6 * found.product_macs * config.num_epochs * 45_000
    assert f'{operations / 1e15:.1f} PFLOP' in line
