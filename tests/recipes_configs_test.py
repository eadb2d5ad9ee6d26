"""Every recipe in `configs/` builds all that it names, by shape alone."""

import ast

import jax
import ml_collections
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.data import datasets, imagenet
from gswinrmt_jax.models import factory
from gswinrmt_jax.train import losses, optimizer, schedule

COUNTS = {
    'ablation:retention,no_gate': 14_377_698,  # 961,408 of the gate
    'cifar10_95': 13_878_022,
    'cifar10_small': 2_386_874,
    'cifar10_small:rmt': 2_041_570,
    'cifar10_rmt': 11_455_018,
    'cifar10_retention': 15_339_106,
    'cifar10_swat': 15_339_106,
    'digits_rmt': 168_994,
    'digits_retention': 212_492,
    'digits_swat': 212_492,
    'imagenet_rmt:t': 14_334_216,
    'imagenet_rmt:s,token_label': 27_480_240,
    'mini_imagenet_rmt': 77_370_532,
    'mini_imagenet_retention': 78_615_316,
    'mini_imagenet_swat': 78_615_316,
}
# Model of each argument, whose parameters are counted in parameters_test.
IMAGENET = {
    't': 'rmt_t',
    's': 'rmt_s',
    'b': 'rmt_b',
    'l': 'rmt_l',
    's,token_label': 'rmt_s_tl',
    'b,token_label': 'rmt_b_tl',
    'l,token_label': 'rmt_l_tl',
}
SIZES = {
    'cifar10': 45_000,
    'digits': 1_297,
    'imagenet': 1_281_167,
    'mini_imagenet': 50_000,
}
NAMES = sorted({name.partition(':')[0] for name in COUNTS})


def test_the_table_is_complete():
  assert recipe_files.names() == NAMES


def _info(name):
  if not name.endswith('imagenet'):
    return datasets.info(name)
  # They need not be prepared here.
  classes = imagenet.classes()[: 100 if name.startswith('mini') else None]
  return datasets.Info(name, classes, imagenet.MEAN, imagenet.STD, (224, 224))


def _leaves(config, prefix=''):
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from _leaves(value, f'{prefix}{name}.')
    else:
      yield prefix + name, value


def _size(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize('smoke', [False, True])
@pytest.mark.parametrize('name', sorted(COUNTS))
def test_builds(name, smoke):
  tail = (',smoke' if ':' in name else ':smoke') if smoke else ''
  maps = ['--config.data.label_maps=maps'] if 'token' in name else []
  config = recipe_files.load(name + tail, [] if smoke else maps)
  assert config.is_locked
  for path, value in _leaves(config):
    # Others cannot be overridden on the command line.
    kinds = (int, float, str, bool, tuple)
    assert isinstance(value, kinds) or path.startswith('model.'), path
  resolved = recipes.resolve(config)
  info = _info(config.data.name)
  steps = schedule.from_config(config, SIZES[config.data.name])
  assert steps.total_steps > 0
  model = recipes.make_model(resolved, len(info.class_names), (32, 32, 3))
  tx = optimizer.from_config(config, schedule.learning_rate(config, steps))
  # Kept since the model was tried: tracing is what this test takes time for.
  params = factory.variable_shapes(model, (32, 32, 3))['params']
  count = _size(params)
  moments = _size(jax.eval_shape(tx.init, params))
  assert 2 * count < moments < 2 * count + 5  # and what counts steps
  assert count < 80_000 if smoke else count == COUNTS[name]


@pytest.mark.parametrize('argument', IMAGENET)
def test_each_argument_is_the_named_model(argument):
  labels = 'token_label' in argument
  maps = ['--config.data.label_maps=maps'] if labels else []
  config = recipe_files.load(f'imagenet_rmt:{argument}', maps)
  config = recipes.resolve(config)
  name = IMAGENET[argument]
  assert config.model.to_dict() == {'name': name, **factory.resolve(name, {})}
  steps = schedule.from_config(config, SIZES['imagenet'])
  rate = schedule.learning_rate(config, steps)
  assert rate(steps.total_steps // 2) > 0
  _, loss = losses.augmentation_and_loss(
      config, _info('imagenet'), steps, stride=32
  )
  assert (loss is losses.class_loss) != labels


@pytest.mark.parametrize('name', NAMES)
def test_the_docstring_has_command_and_result(name):
  path = recipe_files.folder() / f'{name}.py'
  text = ast.get_docstring(ast.parse(path.read_text()))
  assert f'python train.py --config=configs/{name}.py' in text
  assert '\nResult: ' in text
