"""From recipe fields to objects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.augment import batch
from gswinrmt_jax.data import datasets
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import build
from gswinrmt_jax.train import schedule as plan_lib


def _recipe(**changes):
  config = recipes.with_argument(recipes.digits('swat_compact'), 'smoke')
  config.update_from_flattened_dict(changes)
  return config


def test_resolve_fills_every_field_and_keeps_overrides():
  config = recipes.resolve(_recipe(**{'model.window_size': 7}))
  assert None not in config.model.to_dict().values()
  assert config.model.window_size == 7
  assert config.model.widths == (8, 8, 16, 16)
  assert config.model.score_fn == 'sigmoid'  # the named model's own
  assert recipes.resolve(config) == config


def test_resolve_names_an_unknown_model():
  with pytest.raises(UserError, match='swat_compact'):
    recipes.resolve(_recipe(**{'model.name': 'swat_compcat'}))


def test_model_takes_classes_and_dtype_from_the_recipe():
  model = build.make_model(recipes.resolve(_recipe()), 7, (32, 33, 3))
  logits = jax.eval_shape(
      lambda: model.init_with_output(
          jax.random.key(0), jnp.zeros((2, 32, 33, 3)), train=False
      )[0]
  )
  assert logits.shape == (2, 7) and logits.dtype == jnp.float32


@pytest.mark.parametrize(
    ('changes', 'shape', 'match'),
    [
        ({'model.num_heads': (3, 1, 2, 2)}, (32, 32, 3), '3 heads'),
        ({'dtype': 'float31'}, (32, 32, 3), 'float31'),
        ({}, (31, 64, 3), '31'),
    ],
)
def test_a_model_that_cannot_be_is_one_line(changes, shape, match):
  with pytest.raises(UserError, match=match) as caught:
    build.make_model(recipes.resolve(_recipe(**changes)), 7, shape)
  assert '\n' not in str(caught.value).strip()


def test_optimizer_steps_follow_the_epochs():
  """Warm-up 2.5 epochs of 10 images in batches of 4: floor(6.25) steps."""
  config = recipes.cifar10('swat_compact')
  config.update_from_flattened_dict(
      {
          'batch_size': 4,
          'optimizer.warmup_epochs': 2.5,
          'optimizer.learning_rate': 2.0,
      }
  )
  schedule, tx = build.make_optimizer(config, plan_lib.make_plan(config, 10))
  assert float(schedule(6)) == 2.0 and float(schedule(3)) == 1.0
  # 50 epochs end at step 125; the middle of the cosine is (6 + 125) / 2.
  np.testing.assert_allclose(float(schedule(65)), 1.013, atol=1e-3)
  params = {'kernel': jnp.ones(3)}
  assert jax.tree.leaves(tx.init(params))


def test_rates_of_epochs_change_where_epochs_end():
  """Ten records in batches of four: epochs end at steps 2, 5, 7, 10."""
  config = _recipe(
      **{
          'batch_size': 4,
          'num_epochs': 4,
          'optimizer.schedule': 'epochs',
          'optimizer.warmup_epochs': 2.0,
          'optimizer.learning_rate': 0.5,
          'optimizer.warmup_learning_rate': 0.25,
          'optimizer.final_learning_rate': 0.125,
      }
  )
  schedule, _ = build.make_optimizer(config, plan_lib.make_plan(config, 10))
  # Epoch 3 is at t = 2 of 4: half way down the cosine.
  rates = [0.25] * 5 + [0.375] * 2 + [0.3125] * 3
  np.testing.assert_allclose([schedule(step) for step in range(10)], rates)


def test_the_cosine_takes_both_ends():
  config = _recipe(
      **{
          'batch_size': 4,
          'num_epochs': 4,
          'optimizer.warmup_epochs': 2.0,
          'optimizer.learning_rate': 0.5,
          'optimizer.warmup_learning_rate': 0.25,
          'optimizer.final_learning_rate': 0.125,
      }
  )
  schedule, _ = build.make_optimizer(config, plan_lib.make_plan(config, 10))
  found = [float(schedule(step)) for step in (0, 1, 5, 10)]
  np.testing.assert_allclose(found, [0.25, 0.3, 0.5, 0.125], rtol=1e-6)


def test_schedules_that_cannot_be_are_named():
  for field, value, said in (
      ('schedule', 'cosin', "'cosine' or 'epochs', not 'cosin'"),
      ('warmup_learning_rate', 1.0, 'must not be above'),
      ('final_learning_rate', 1.0, 'must not be above'),
      ('final_learning_rate', float('nan'), 'must be at least 0'),
  ):
    config = _recipe(**{f'optimizer.{field}': value})
    with pytest.raises(UserError, match=f'optimizer.{field} is .*{said}'):
      build.make_optimizer(config, plan_lib.make_plan(config, 1297))


def test_augmentation_and_normalization_know_the_data_set():
  info = datasets.info('digits')
  image = jnp.full((2, 32, 32, 3), 51, jnp.uint8)
  label = jnp.array([3, 5])
  config = _recipe(label_smoothing=0.2)
  config.augment.crop_padding = 0
  out, targets = build.make_augmentation(config, info)(
      jax.random.key(0), {'image': image, 'label': label}
  )
  expected = (51 / 255 - info.mean[0]) / info.std[0]
  np.testing.assert_allclose(out[..., 0], expected, rtol=1e-5)
  np.testing.assert_allclose(
      build.make_normalization(info)(image)[..., 0], expected, rtol=1e-5
  )
  np.testing.assert_allclose(targets[0, 3], 0.82, rtol=1e-6)
  np.testing.assert_allclose(targets[0, 4], 0.02, rtol=1e-6)


def test_cifar10_is_augmented_as_table_2_says():
  config = recipes.cifar10('rmt_compact')
  info = datasets.info('cifar10')
  settings = build.augment_settings(config, info)
  assert settings == batch.Augment(
      crop_padding=4,
      flip=True,
      rand_augment_set='timm',
      rand_augment_ops=2,
      rand_augment_magnitude=9.0,
      rand_augment_std=0.5,
      rand_augment_prob=0.5,
      erase_prob=0.25,
      erase_area=(0.02, 1 / 3),
      erase_aspect=(0.3, 1 / 0.3),
      erase_fill='noise',
      mixup_alpha=0.8,
      cutmix_alpha=1.0,
      mix_prob=1.0,
      label_smoothing=0.1,
      num_classes=10,
      mean=(0.4914, 0.4822, 0.4465),
      std=(0.2470, 0.2435, 0.2616),
  )
  assert settings.fill == (125, 123, 114)


@pytest.mark.parametrize(
    ('field', 'value'),
    [
        ('learning_rate', -1e-3),
        ('learning_rate', float('nan')),
        ('weight_decay', -0.05),
        ('warmup_epochs', -1.0),
        ('b1', 1.0),
    ],
)
def test_optimizer_numbers_out_of_range_are_named(field, value):
  config = _recipe(**{f'optimizer.{field}': value})
  with pytest.raises(UserError, match=f'config.optimizer.{field} is'):
    build.make_optimizer(config, plan_lib.make_plan(config, 1297))


def test_the_policy_for_what_is_not_finite():
  config = recipes.digits('retention_compact')
  assert not build.skips_nonfinite(config)
  config.nan_policy = 'skip'
  assert build.skips_nonfinite(config)
  config.nan_policy = 'ignore'
  with pytest.raises(UserError, match="'stop' or 'skip', not 'ignore'"):
    build.skips_nonfinite(config)


def test_the_effort_of_compilation_is_full_or_quick():
  config = recipes.digits('retention_compact')
  assert build.compiler_options(config) is None
  config.compile_effort = 'quick'
  assert build.compiler_options(config) == mesh.quick_compilation()
  config.compile_effort = 'none'
  with pytest.raises(UserError, match="'full' or 'quick', not 'none'"):
    build.compiler_options(config)
