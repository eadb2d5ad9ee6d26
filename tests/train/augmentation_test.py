"""Tests training on mixed batches: when mixing ends, how accuracy counts."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gswinrmt_jax import recipes, terminal
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import progress
from gswinrmt_jax.train import losses, train_step
from gswinrmt_jax.train import schedule as schedule_lib
from gswinrmt_jax.train import train_state as state_lib


def _schedule(steps=0, **changes):
  config = recipes.digits('rmt_compact')
  config.num_epochs = 0 if steps else 4
  config.num_steps = steps
  config.augment.update({'mixup_alpha': 1.0, **changes})
  return config, schedule_lib.from_config(config, 1297)


@pytest.mark.parametrize(
    ('changes', 'epochs'),
    [
        ({}, 4),
        ({'mix_off_epochs': 1}, 3),
        ({'mix_off_epochs': 4}, 0),
        ({'mix_prob': 0.0}, 0),
        ({'mixup_alpha': 0.0}, 0),
    ],
)
def test_epochs_with_mixing(changes, epochs):
  _, schedule = _schedule(**changes)
  assert schedule.mixed_steps == epochs * 1297 // 64


def test_more_epochs_without_mixing_than_a_run_of_steps_has_are_refused():
  with pytest.raises(UserError, match='is 3: must be at most 2, the epochs of'):
    _schedule(mix_off_epochs=3, steps=30)  # 30 batches of 64 are 1.5 epochs


def test_the_last_epochs_are_not_mixed():
  config, schedule = _schedule(mix_off_epochs=1)
  augmentation, _ = losses.augmentation_and_loss(
      recipes.resolve(config), datasets.info('digits'), schedule, model=None
  )
  batch = {
      'image': jnp.zeros((4, 8, 8, 3), jnp.uint8),
      'label': jnp.array([0, 1, 2, 3]),
  }
  last = 3 * 1297 // 64  # updates before the last epoch
  run = jax.jit(lambda step: augmentation(jax.random.key(0), batch, step)[1])
  mixed, plain = run(last - 1), run(last)
  np.testing.assert_array_equal(plain, np.eye(10)[:4])
  assert (mixed != plain).any()


class _Constant:
  """Always predicts class 1; its parameter exists only to have a gradient."""

  def apply(self, variables, image, **options):
    logits = jnp.tile(jnp.array([0.0, 1.0, 0.5]), (len(image), 1))
    return logits * variables['params']['w'], {'batch_stats': {}}


def test_training_accuracy_counts_the_dominant_label():
  """It is the class with the largest share of the target."""
  tx, params = optax.sgd(0.0), {'w': jnp.float32(1.0)}
  state = state_lib.TrainState(
      step=jnp.int32(0),
      params=params,
      batch_stats={},
      opt_state=tx.init(params),
  )
  batch = {'image': jnp.zeros((4, 2, 2, 3)), 'label': jnp.array([0, 1, 0, 2])}

  def augmentation(key, batch, step):
    target = jnp.array(
        [[0.4, 0.6, 0.0], [0.1, 0.8, 0.1], [0.6, 0.4, 0.0], [0.0, 0.7, 0.3]]
    )
    return batch['image'], target

  update = train_step.make_train_step(_Constant(), tx, augmentation)
  _, metrics = jax.jit(update)(state, batch, jax.random.key(0))
  assert metrics['accuracy'] == 0.75  # 0.25 against the labels


def test_the_progress_line_says_what_is_counted():
  """Mixing ends after 2 of 6 epochs, at step 5; an interval has 3 steps."""
  schedule = schedule_lib.Schedule(
      num_examples=5,
      batch_size=2,
      num_epochs=6,
      stop_after_epochs=6,
      eval_every_epochs=1,
      log_every_steps=3,
      mixed_epochs=2,
  )
  stream = io.StringIO()
  told = progress.Progress(
      schedule, terminal.Terminal(stream), [], lambda: 1.0, start=0
  )
  entry = {
      'loss': 1.0,
      'accuracy': 0.5,
      'images_per_second': 9,
      'seconds': 1,
      'data_wait': 0,
  }
  for step in (3, 6, 9):
    told.write({'kind': 'train', 'step': step, **entry})
  first, across, last = stream.getvalue().splitlines()
  assert 'mixed acc 50.0%' in first
  assert 'mixed acc 50.0%' in across
  assert '  acc 50.0%' in last
