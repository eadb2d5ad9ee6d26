"""Tests that every recipe in `configs/` builds, by tracing shapes alone."""

import ast
import types
from unittest import mock

import deep_shapes
import jax
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.data import datasets, imagenet
from gswinrmt_jax.models import factory
from gswinrmt_jax.train import (
    augmentation,
    learning_rate,
    losses,
    optimizer,
    schedule,
)

# Recipes that modify their model, and its number of parameters.
COUNTS = {
    'ablation:retention,no_gate': 14_377_698,  # less the gate's 961,408
    'cifar10_95': 13_878_022,
    'cifar10_small': 2_378_426,
    'cifar10_small:rmt': 2_035_234,
    'folder': 2_378_426,
    'digits_rmt': 168_994,
    'digits_retention': 212_492,
    'digits_swat': 212_492,
}
# Segmenters and their number of parameters; on ADE20K those of RMT's paper.
SEGMENTERS = {
    'ade20k_fpn:t': 17_034_038,
    'ade20k_uper:s': 55_724_428,
    'camvid:rmt': 1_165_307,
    'camvid:retention': 1_265_723,
    'camvid:swat': 1_265_723,
    'camvid:conv': 1_165_307,
}
# Detectors and their number of parameters; on COCO those of the release.
DETECTORS = {
    'bccd:rmt': 1_161_391,
    'bccd:retention': 1_261_807,
    'bccd:swat': 1_261_807,
    'coco_detection:retina_t': 23_017_364,
    'coco_detection:mask_s': 45_567_824,
    'coco_detection:cascade_s_3x': 83_403_026,
    'nuclei': 1_864_326,
}
# Recipes of named models, whose parameters are counted in parameters_test.
NAMED = {
    'cifar10_rmt': 'rmt_compact',
    'cifar10_retention': 'retention_compact',
    'cifar10_swat': 'swat_compact',
    'imagenet_rmt:t': 'rmt_t',
    'imagenet_rmt:s': 'rmt_s',
    'imagenet_rmt:b': 'rmt_b',
    'imagenet_rmt:l': 'rmt_l',
    'imagenet_rmt:s,token_label': 'rmt_s_tl',
    'imagenet_rmt:b,token_label': 'rmt_b_tl',
    'imagenet_rmt:l,token_label': 'rmt_l_tl',
    'mini_imagenet_rmt': 'rmt_large',
    'mini_imagenet_retention': 'retention_large',
    'mini_imagenet_swat': 'swat_large',
}
SIZES = {
    'cifar10': 45_000,
    '': 45_000,  # of a recipe for any data
    'digits': 1_297,
    'imagenet': 1_281_167,
    'mini_imagenet': 50_000,
    'ade20k': 20_210,
    'camvid': 367,
    'digit_masks': 1_297,
    'bccd': 205,
    'coco': 117_266,  # with objects
    'nuclei': 298,
    'digit_boxes': 192,
}
NAMES = sorted(
    {
        name.partition(':')[0]
        for name in (*COUNTS, *NAMED, *SEGMENTERS, *DETECTORS)
    }
)


def test_the_table_is_complete():
  assert recipe_files.names() == NAMES


def _info(name):
  counts = {'ade20k': 150, 'camvid': 11, 'bccd': 3, 'coco': 80, 'nuclei': 1}
  if name in counts:
    classes = tuple(map(str, range(counts[name])))
    return datasets.Info(name, classes, imagenet.MEAN, imagenet.STD, (32, 32))
  if not name.endswith('imagenet'):
    return datasets.info(name or 'cifar10')
  # The data sets need not be prepared for this test.
  classes = imagenet.classes()[: 100 if name.startswith('mini') else None]
  return datasets.Info(name, classes, imagenet.MEAN, imagenet.STD, (224, 224))


def _size(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _load(name):
  maps = ['--config.data.label_maps=maps'] if 'token' in name else []
  config = recipe_files.load(name, [] if 'smoke' in name else maps)
  assert config.is_locked
  for path, value in recipe_files.leaves(config):
    # Values of other types cannot be overridden on the command line.
    kinds = (int, float, str, bool, tuple)
    assert isinstance(value, kinds) or path.startswith('model.'), path
  return config


def _parameters(name):
  """Builds a recipe's model and optimizer; returns the parameter count."""
  config = _load(name)
  info = _info(config.data.name)
  steps = schedule.from_config(config, SIZES[config.data.name])
  assert steps.total_steps > 0
  shapes = deep_shapes.variable_shapes
  with mock.patch.object(factory, 'variable_shapes', shapes):
    model = recipes.make_model(
        recipes.resolve(config), len(info.class_names), (32, 32, 3)
    )
  tx = optimizer.from_config(
      config.optimizer, learning_rate.from_config(config.optimizer, steps)
  )
  # Cached by make_model; tracing dominates the time of this test.
  params = shapes(model, (32, 32, 3))['params']
  count = _size(params)
  moments = _size(jax.eval_shape(tx.init, params))
  if config.optimizer.name == 'muon':  # which has one moment of a matrix
    assert count < moments < 1.5 * count
  else:
    assert 2 * count < moments < 2 * count + 5  # plus step counters
  return count


@pytest.mark.parametrize('name', [*COUNTS, *SEGMENTERS, *DETECTORS])
def test_builds(name):
  assert _parameters(name) == (COUNTS | SEGMENTERS | DETECTORS)[name]


# A smoke run changes every recipe in the same way, so that one recipe of a file
# will do; it is the last.
@pytest.mark.parametrize(
    'name',
    {
        name.partition(':')[0]: name
        for name in (*COUNTS, *NAMED, *SEGMENTERS, *DETECTORS)
    }.values(),
)
def test_its_smoke_run_builds(name):
  tail = ',smoke' if ':' in name else ':smoke'
  assert _parameters(name + tail) < 80_000


@pytest.mark.parametrize('name', NAMED)
def test_is_the_named_model(name):
  config = recipes.resolve(_load(name))
  model = NAMED[name]
  # The default reading of Table 2 initialises linear layers as PyTorch does.
  start = 'normal' if name.startswith('imagenet') else 'uniform'
  fields = factory.resolve(model, {'linear_start': start})
  assert config.model.to_dict() == {'name': model, **fields}
  steps = schedule.from_config(config, SIZES[config.data.name])
  rate = learning_rate.from_config(config.optimizer, steps)
  assert rate(steps.total_steps // 2) > 0
  model = types.SimpleNamespace(arch=types.SimpleNamespace(stride=32))
  augmentation.from_config(config, _info(config.data.name), steps, model)
  loss = losses.from_config(config, model)
  function = getattr(loss, 'func', loss)
  assert (function is losses.token_label_loss) == ('token_label' in name)


@pytest.mark.parametrize('name', NAMES)
def test_the_docstring_has_command_and_result(name):
  path = recipe_files.folder() / f'{name}.py'
  text = ast.get_docstring(ast.parse(path.read_text()))
  assert f'python train.py --config=configs/{name}.py' in text
  assert '\nResult: ' in text
