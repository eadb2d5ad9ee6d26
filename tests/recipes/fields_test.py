"""Tests the fields of a config, and recipes against Table 2 and releases."""

import json

import numpy as np
import pytest

from gswinrmt_jax import ops, recipes
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.errors import UserError


def test_cifar10_is_table_2():
  """In the reading `deit`, which keeps the printed learning rate."""
  config = recipes.cifar10('retention_compact')
  recipes.set_reading(config, 'deit')
  assert config.batch_size == 128 and config.num_epochs == 50
  assert config.dtype == 'bfloat16' and config.label_smoothing == 0.1
  assert config.optimizer.to_dict() == {
      'name': 'adamw',
      'learning_rate': 1e-4,
      'schedule': 'cosine',
      'power': 1.0,
      'drop_epochs': (8, 11),
      'warmup_epochs': 5.0,
      'warmup_steps': 0,
      'warmup_learning_rate': 0.0,
      'final_learning_rate': 0.0,
      'weight_decay': 0.05,
      'decay': 'kernels',
      'decay_layer_scale': False,
      'freeze': '',
      'freeze_statistics': False,
      'layer_decay': 1.0,
      'clip_norm': 0.0,
      'b1': 0.9,
      'b2': 0.999,
      'eps': 1e-8,
  }
  assert config.augment.to_dict() == {
      'crop_padding': 4,
      'flip': True,
      'flip_vertical': False,
      'multi_scale': False,
      'resize': (0.5, 2.0),
      'max_class_share': 0.75,
      'photometric': False,
      'rand_augment_set': 'timm',
      'rand_augment_ops': 2,
      'rand_augment_magnitude': 9.0,
      'rand_augment_std': 0.5,
      'rand_augment_prob': 0.5,
      'erase_prob': 0.25,
      'erase_area': (0.02, 1 / 3),
      'erase_aspect': (0.3, 1 / 0.3),
      'erase_fill': 'noise',
      'mixup_alpha': 0.8,
      'cutmix_alpha': 1.0,
      'mix_prob': 1.0,
      'mix_off_epochs': 0,
  }


def test_mini_imagenet_is_cifar10_but_for_its_images_and_epochs():
  config, other = (
      recipe('rmt_large').to_dict()
      for recipe in (recipes.mini_imagenet, recipes.cifar10)
  )
  data = config.pop('data')
  assert data['image_size'] == 224 and data['eval_crop'] == 0.0
  assert data['train_crop'] == 'resize' and data['name'] == 'mini_imagenet'
  del other['data']
  assert config['num_epochs'] == 40 and config['augment']['crop_padding'] == 0
  config['augment']['crop_padding'] = 4
  differing = {key for key in config if config[key] != other[key]}
  assert differing == {'num_epochs', 'eval_batch_size'}


def test_only_these_may_change_when_a_run_resumes():
  assert recipes.free_fields() == {
      'checkpoint_every_steps',
      'compile_effort',
      'data.dir',
      'data.label_maps',
      'data.storage',
      'data.test_split',
      'data.workers',
      'eval_batch_size',
      'log_every_steps',
      'nan_policy',
      'profile_steps',
      'remat',
      'stop_after_epochs',
  }


@pytest.mark.parametrize('size', ['t', 's', 'b', 'l'])
def test_imagenet_is_as_released(size):
  config = recipe_files.load(f'imagenet_rmt:{size}', [])
  assert config.model.name == f'rmt_{size}'
  assert set(config.model.to_dict().values()) == {config.model.name, None}
  assert config.num_epochs == 300 and config.label_smoothing == 0.1
  reading = recipes.with_argument(
      recipes.cifar10('rmt_compact'), 'deit', table2=True
  )
  assert config.optimizer.to_dict() == {
      **reading.optimizer.to_dict(),
      # The learning rate in every released log peaks at 2e-3.
      'learning_rate': pytest.approx(2e-3, rel=1e-12),
      'schedule': 'epochs',
      'warmup_learning_rate': 1e-6,
      'final_learning_rate': 1e-5,
      'decay_layer_scale': True,
  }
  # RandAugment is rand-m9-mstd0.5-inc1, as on CIFAR-10; only the crop differs.
  augment = reading.augment.to_dict()
  assert config.augment.to_dict() == {**augment, 'crop_padding': 0}
  data = config.data.to_dict()
  assert data['image_size'] == 224 and data['eval_crop'] == 224 / 256
  assert data['train_crop'] == 'random_resized' and data['repeats'] == 3
  assert data['crop_scale'] == (0.08, 1.0)
  assert data['crop_ratio'] == pytest.approx((3 / 4, 4 / 3))
  splits = [data[f'{name}_split'] for name in ('train', 'val', 'test')]
  assert splits == ['train', 'val', '']


def test_token_labels_change_what_the_release_changes():
  plain = recipe_files.load('imagenet_rmt:s', [])
  config = recipe_files.load('imagenet_rmt:s,token_label', [])
  changed = {
      field: value
      for field, value in recipe_files.leaves(config)
      if value != dict(recipe_files.leaves(plain))[field]
  }
  assert changed == {
      'model.name': 'rmt_s_tl',
      'num_epochs': 310,
      'token_label_weight': 0.5,
      'augment.mixup_alpha': 0.0,
      'augment.cutmix_alpha': 0.0,
      'data.repeats': 1,
      'data.eval_crop': 0.96,
  }
  config.data.label_maps = 'maps'
  assert recipes.resolve(config).model.dense_head
  smoke = recipe_files.load('imagenet_rmt:s,token_label,smoke', [])
  smoke = recipes.resolve(smoke)
  assert smoke.model.dense_head and not smoke.token_label_weight


@pytest.mark.parametrize(
    ('name', 'changes'),
    [
        (
            'ade20k_fpn:l',
            {
                'num_steps': 80_000,
                'dtype': 'float32',
                'optimizer.learning_rate': 1e-4,
                'optimizer.power': 0.9,
                'optimizer.warmup_steps': 0,
                'optimizer.final_learning_rate': 1e-6,
                'optimizer.weight_decay': 1e-4,
                'optimizer.decay': 'all',
            },
        ),
        (
            'ade20k_uper:l',
            {
                'num_steps': 160_000,
                'dtype': 'bfloat16',
                'optimizer.learning_rate': 6e-5,
                'optimizer.power': 1.0,
                'optimizer.warmup_steps': 1500,
                'optimizer.warmup_learning_rate': pytest.approx(6e-11),
                'optimizer.final_learning_rate': 0.0,
                'optimizer.weight_decay': 0.01,
                'optimizer.decay': 'not_norms',
            },
        ),
    ],
)
def test_ade20k_is_as_released(name, changes):
  config = recipes.resolve(recipe_files.load(name, []))
  found = dict(recipe_files.leaves(config))
  both = {
      'batch_size': 16,
      'optimizer.schedule': 'poly',
      'segmenter.mean_over': 'all',
      'segmenter.auxiliary_weight': 0.4,
      'data.fit_within': (2048, 512),
      'data.crop_size': (512, 512),
      'augment.resize': (0.5, 2.0),
      'augment.max_class_share': 0.75,
      'augment.flip': True,
      'augment.photometric': True,
      'model.name': 'rmt_l',
      'model.drop_path_rate': 0.5,
      'model.feature_norm': True,
  }
  wanted = both | changes
  assert {field: found[field] for field in wanted} == wanted
  heads = {
      'fpn': {'channels': 128, 'neck_channels': 256, 'auxiliary_channels': 0},
      'uper': {'channels': 512, 'neck_channels': 0, 'auxiliary_channels': 256},
  }
  fields = recipes.head_fields(config)
  assert fields == {'head': fields['head'], **heads[fields['head']]}


def test_the_skeleton_without_attention_takes_the_values_as_they_are():
  """In windows of one token, whatever the queries and keys."""
  rmt, conv = (
      recipes.resolve(recipe_files.load(f'camvid:{name}', [])).model.to_dict()
      for name in ('rmt', 'conv')
  )
  differing = {field: conv[field] for field in rmt if conv[field] != rmt[field]}
  assert differing == {'window_size': 1, 'full_stages': ()}
  query, key, value = np.random.default_rng(0).normal(size=(3, 1, 5, 4, 2, 6))
  decay = np.log([[0.5, 0.75]] * 2)  # per axis
  for shift in (0, 1):
    found = ops.retention(query, key, value, decay, window=1, shift=shift)
    np.testing.assert_allclose(found, value, rtol=1e-6)


@pytest.mark.parametrize(
    ('field', 'value', 'said'),
    [
        ('label_smoothing', 0.1, 'must be 0.0 for a segmenter'),
        ('data.storage', 'memory', "must be 'decode' for a segmenter"),
        ('accumulate_steps', 2, "1 unless config.segmenter.mean_over='all'"),
        ('data.fit_within', (180, 240), 'the longer side first'),
    ],
)
def test_what_a_segmenter_is_not_trained_with_is_refused(field, value, said):
  config = recipes.segmentation('rmt_compact', 'fpn')
  recipes.check(config)
  config.update_from_flattened_dict({field: value})
  with pytest.raises(UserError, match=said):
    recipes.check(config)


@pytest.mark.parametrize(
    ('field', 'value', 'said'),
    [
        ('head', 'proj', "model.head is 'proj': must be 'norm' for a segm"),
        ('dense_head', True, 'dense_head is True: must be False for a segm'),
    ],
)
def test_a_head_that_a_segmenter_lacks_is_refused(field, value, said):
  config = recipes.segmentation('rmt_compact', 'fpn')
  config.model[field] = value
  with pytest.raises(UserError, match=said):
    recipes.resolve(config)
  config.model.name = 'rmt_s_tl'  # whose own fields these are
  recipes.resolve(config)


def test_the_smoke_run_of_a_recipe_of_ones_own_is_valid():
  config = recipes.cifar10('retention_compact')
  config.init_from, config.optimizer.freeze = 'cifar10_small', 'stage1'
  config.stop_after_epochs, config.profile_steps = 10, '500:510'
  config.accumulate_steps = 64
  smoke = recipes.with_argument(config, 'smoke')
  recipes.check(smoke)
  assert (smoke.init_from, smoke.optimizer.freeze) == ('', '')
  assert (smoke.stop_after_epochs, smoke.profile_steps) == (0, '')
  assert smoke.accumulate_steps == 1


def test_the_argument_is_smoke_or_refused():
  config = recipes.cifar10('swat_compact')
  assert recipes.with_argument(config, None) is config
  smoke = recipes.with_argument(config, 'smoke')
  assert smoke.model.name == 'swat_compact' and smoke.num_epochs == 1
  assert smoke.data.name == 'digits'
  assert smoke.augment.crop_padding == 4
  original = recipes.cifar10('swat_compact')
  assert smoke.augment == original.augment  # the same code path
  assert smoke.dtype == original.dtype
  assert smoke.compile_effort == 'quick' and original.compile_effort == 'full'
  with pytest.raises(UserError, match=r"misplaced argument 'smok' .*'smoke'"):
    recipes.with_argument(config, 'smok')


def test_the_model_of_the_argument_is_known_or_refused():
  names = ('a', 'b')
  assert recipes.split_model(None, names, 'a') == ('a', None)
  assert recipes.split_model('smoke', names, 'a') == ('a', 'smoke')
  assert recipes.split_model('b,x,y', names, 'a') == ('b', 'x,y')
  for argument in (None, 'smoke', 'c'):
    with pytest.raises(UserError, match=': name one of a, b after the colon'):
      recipes.split_model(argument, names)
  with pytest.raises(UserError, match="the model 'smoke' is unknown"):
    recipes.split_model('smoke,b', names, 'a')  # which would drop b


@pytest.mark.parametrize(
    ('spec', 'override', 'said'),
    [
        (
            'cifar10_retention',
            'model.num_heads=(3, 4, 8, 16)',
            'config.model, retention_compact: 3 heads do not divide',
        ),
        (
            'cifar10_small',
            'optimizer.freeze=stage4',
            "freeze is 'stage4': the model has stage1 to stage3",
        ),
        (
            'imagenet_rmt:s,token_label',
            'model.name=rmt_s',
            'token labels need a model with a dense head, not rmt_s: take',
        ),
    ],
)
def test_what_no_model_can_be_or_do_is_refused_before_any_data(
    spec, override, said
):
  config = recipe_files.load(spec, [f'--config.{override}'])
  config.init_from = 'x'
  config.data.label_maps = 'maps' * ('token' in spec)
  with pytest.raises(UserError, match=said):
    recipes.resolve(config)


def _with(field, value):
  config = recipes.digits('rmt_compact').unlock()
  *sections, name = field.split('.')
  (config[sections[0]] if sections else config)._fields[name] = value
  return config


def test_every_field_has_a_meaning_and_an_allowed_default():
  for path, field in recipes.FIELDS.items():
    assert field.meaning, path
    assert path == 'model.name' or not field.wanted(field.default), path


@pytest.mark.parametrize(
    ('field', 'value', 'said'),
    [
        ('seed', '7', "config.seed is '7': must be a whole number, from 0 to"),
        ('seed', True, 'whole number'),
        ('seed', 2**32, 'seed is 4294967296: must be from 0 to 4,294,967,295'),
        ('batch_size', 0, 'batch_size is 0: must be at least 1'),
        ('log_every_steps', 2**31, 'at most 2,147,483,647'),
        ('data.name', 7, 'data.name is 7: must be text$'),
        ('data.storage', 'ram', "'ram': must be 'memory' or 'disk' or"),
        ('augment.flip', 1, 'augment.flip is 1: must be True or False'),
        ('augment.erase_prob', 1.5, 'must be from 0 to 1'),
        ('ema_decay', 'a', "ema_decay is 'a': must be a number"),
        ('ema_decay', 1, 'must be at least 0 and below 1'),
        ('ema_decay', float('nan'), 'must be at least 0 and below 1'),
        ('optimizer.learning_rate', 1e39, 'must be a number'),
        ('optimizer.weight_decay', -0.05, 'must be at least 0'),
        ('optimizer.warmup_steps', 3, 'one of them must be 0'),
        ('num_steps', 3, 'set exactly one of them'),
        ('num_epochs', 0, 'set exactly one of them'),
        ('segmenter.channels', 64, 'must be -1 without config.segmenter.head'),
        ('data.crop_size', (32,), 'two whole numbers, each from 1 to 4,096'),
        ('data.crop_size', (0, 32), 'two whole numbers, each from 1 to 4,096'),
        ('data.fit_within', (240, 0), r'two numbers above 0, or \(0, 0\)'),
        ('optimizer.warmup_learning_rate', 1.0, 'at most config.optimizer.le'),
        ('profile_steps', '1-2', 'must be FIRST:LAST'),
        ('data.crop_scale', (0.5, 1.5), 'which is not above 1$'),
        ('data.crop_scale', (0.0, 1.0), 'two numbers above 0'),
        ('data.crop_ratio', (2.0, 1.0), 'not above the second$'),
        ('data.eval_crop', 0.5, 'eval_crop needs config.data.image_size'),
        ('data.eval_crop', 0.09, 'is 0.09: must be 0, or from 0.1 to 1'),
        ('data.train_crop', 'random_resized', 'needs config.data.storage='),
        ('data.repeats', 22, r'to a third of config\.batch_size, 64'),
        ('token_label_weight', 0.5, 'token labels need both'),
    ],
)
def test_a_value_that_a_field_cannot_have_is_one_line(field, value, said):
  with pytest.raises(UserError, match=said) as caught:
    recipes.check(_with(field, value))
  assert '\n' not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('seed', 2**32 - 1),
        ('ema_decay', 0),
        ('augment.erase_aspect', (1, 1.5)),
    ],
)
def test_a_value_at_the_edge_is_allowed(field, value):
  recipes.check(_with(field, value))


def test_an_old_config_is_read_without_the_fields_that_are_gone():
  fields = recipes.resolve(recipes.digits('rmt_compact')).to_dict()
  fields['mesh'] = {'data': 0, 'fsdp': 4}
  fields['data']['storage'] = 'device'
  fields['optimizer']['eps'] = 0.0
  fields['model'] |= {'attention_impl': 'pallas', 'ffn_impl': 'pallas'}
  fields |= {'attention_impl': 'banded', 'depthwise_impl': 'shift'}
  del fields['nan_policy'], fields['augment']
  config = recipes.from_json(json.loads(json.dumps(fields)), 'config.json')
  assert 'mesh' not in config and 'augment' in config
  assert config.nan_policy == 'stop' and 'attention_impl' not in config
  assert config.model.widths == (16, 32, 48, 64)
  assert config.data.storage == 'memory' and config.optimizer.eps == 1e-30


@pytest.mark.parametrize(
    ('fields', 'said'),
    [
        ([], 'is not the recipe of a run'),
        ({}, 'names no model'),
        ({'model': 3}, 'is not the recipe of a run'),
        ({'model': {'name': 'rmt_t'}}, 'names no data'),
    ],
)
def test_json_that_is_no_config_is_one_line(fields, said):
  with pytest.raises(UserError, match=said):
    recipes.from_json(fields, 'config.json')
