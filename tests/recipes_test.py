"""The recipes say what Table 2 says."""

import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.train import build, token_labels


def test_cifar10_is_table_2():
  config = recipes.cifar10('retention_compact')
  assert config.batch_size == 128 and config.num_epochs == 50
  assert config.dtype == 'bfloat16' and config.label_smoothing == 0.1
  assert config.optimizer.to_dict() == {
      'learning_rate': 1e-4,
      'schedule': 'cosine',
      'warmup_epochs': 5.0,
      'warmup_learning_rate': 0.0,
      'final_learning_rate': 0.0,
      'weight_decay': 0.05,
      'decay_layer_scale': False,
      'b1': 0.9,
      'b2': 0.999,
      'eps': 1e-8,
  }
  assert config.augment.to_dict() == {
      'crop_padding': 4,
      'flip': True,
      'rand_augment_ops': 2,
      'rand_augment_magnitude': 9.0,
      'rand_augment_std': 0.5,
      'rand_augment_prob': 0.5,
      'erase_prob': 0.25,
      'mixup_alpha': 0.8,
      'cutmix_alpha': 1.0,
  }
  assert config.data.train_split == 'train[:45000]'
  assert config.data.val_split == 'train[45000:]'
  assert config.data.test_split == 'test'


def test_mini_imagenet_is_cifar10_but_for_its_images_and_epochs():
  config, other = (
      recipe('rmt_large').to_dict()
      for recipe in (recipes.mini_imagenet, recipes.cifar10)
  )
  data = config.pop('data')
  assert data['image_size'] == 224 and data['eval_crop'] == 0.0
  assert data['train_crop'] == 'resize' and data['name'] == 'mini_imagenet'
  splits = [data[f'{split}_split'] for split in ('train', 'val', 'test')]
  assert splits == ['train', 'val', 'test']
  del other['data']
  assert config['num_epochs'] == 40 and config['augment']['crop_padding'] == 0
  config['augment']['crop_padding'] = 4
  differing = {key for key in config if config[key] != other[key]}
  assert differing == {'num_epochs', 'eval_batch_size'}


def test_the_model_is_the_named_one_with_nothing_changed():
  model = recipes.cifar10('swat_large').model.to_dict()
  assert model.pop('name') == 'swat_large'
  assert set(model.values()) == {None}
  assert {'widths', 'window_size', 'gate', 'drop_path_rate'} <= set(model)


def test_digits_are_neither_mirrored_nor_mixed():
  config = recipes.digits('rmt_compact')
  assert config.data.name == 'digits' and config.dtype == 'float32'
  assert not config.augment.flip and config.augment.rand_augment_ops == 0
  assert config.augment.mixup_alpha == config.augment.cutmix_alpha == 0.0
  assert config.model.name == 'rmt_compact'


@pytest.mark.parametrize('size', ['t', 's', 'b', 'l'])
def test_imagenet_is_as_released(size):
  config = recipes.imagenet(f'rmt_{size}')
  assert config.model.name == f'rmt_{size}'
  assert set(config.model.to_dict().values()) == {config.model.name, None}
  assert config.num_epochs == 300 and config.label_smoothing == 0.1
  optimizer = config.optimizer.to_dict()
  # Every log peaks at 2e-3.
  assert optimizer.pop('learning_rate') == pytest.approx(2e-3, rel=1e-12)
  assert optimizer == {
      'schedule': 'epochs',
      'warmup_epochs': 5.0,
      'warmup_learning_rate': 1e-6,
      'final_learning_rate': 1e-5,
      'weight_decay': 0.05,
      'decay_layer_scale': True,
      'b1': 0.9,
      'b2': 0.999,
      'eps': 1e-8,
  }
  # rand-m9-mstd0.5-inc1, as on CIFAR-10; the crop is another.
  augment = recipes.cifar10('rmt_compact').augment.to_dict()
  assert config.augment.to_dict() == {**augment, 'crop_padding': 0}
  data = config.data.to_dict()
  assert data['image_size'] == 224 and data['eval_crop'] == 224 / 256
  assert data['train_crop'] == 'random_resized' and data['repeats'] == 3
  assert data['crop_scale'] == (0.08, 1.0)
  assert data['crop_ratio'] == pytest.approx((3 / 4, 4 / 3))
  splits = [data[f'{name}_split'] for name in ('train', 'val', 'test')]
  assert splits == ['train', 'val', '']


def test_token_labels_change_what_the_release_changes():
  plain = recipes.imagenet('rmt_s')
  config = recipes.imagenet_token_labels('rmt_s_tl')
  changed = {
      field: value
      for field, value in _flat(config).items()
      if value != _flat(plain)[field]
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
  info = datasets.info('digits')  # of which the classes matter, no more
  assert token_labels.check(build.resolve(config), info)
  smoke = build.resolve(recipes.with_argument(config, 'smoke'))
  assert smoke.model.dense_head and not token_labels.check(smoke, info)


def _flat(config, prefix=''):
  flat = {}
  for name, value in config.items():
    inner = isinstance(value, type(config))
    flat |= _flat(value, f'{name}.') if inner else {prefix + name: value}
  return flat


def test_the_smoke_run_of_imagenet_is_tiny_and_takes_the_same_path():
  config = recipes.imagenet('rmt_l')
  smoke = recipes.with_argument(config, 'smoke')
  assert smoke.data.name == 'digits' and smoke.batch_size == 64
  assert smoke.optimizer.learning_rate == pytest.approx(5e-4 / 8)
  assert smoke.ema_decay and smoke.optimizer.schedule == 'epochs'
  assert smoke.model.widths == (8, 8, 16, 16)


def test_the_argument_is_smoke_or_refused():
  config = recipes.cifar10('swat_compact')
  assert recipes.with_argument(config, None) is config
  smoke = recipes.with_argument(config, 'smoke')
  assert smoke.model.name == 'swat_compact' and smoke.num_epochs == 1
  assert smoke.data.name == 'digits'
  original = recipes.cifar10('swat_compact')
  assert smoke.augment == original.augment  # the same code path
  assert smoke.dtype == original.dtype
  assert smoke.compile_effort == 'quick' and original.compile_effort == 'full'
  with pytest.raises(ValueError, match=r"unknown argument 'smok' .*'smoke'"):
    recipes.with_argument(config, 'smok')


def test_a_field_that_nobody_reads_is_refused():
  config = recipes.cifar10('swat_compact')
  with pytest.raises(AttributeError, match='num_epochs'):
    config.num_epoch = 5
