"""Tests training on mixed batches: when mixing ends, how accuracy counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.train import augmentation, losses
from gswinrmt_jax.train import schedule as schedule_lib


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
        ({'mix_prob': 0.0}, 0),
        ({'mixup_alpha': 0.0}, 0),
    ],
)
def test_epochs_with_mixing(changes, epochs):
  _, schedule = _schedule(**changes)
  assert schedule.mixed_steps == epochs * 1297 // 64


@pytest.mark.parametrize(('off', 'steps', 'below'), [(3, 30, 2), (4, 0, 4)])
def test_mixing_that_never_begins_is_refused(off, steps, below):
  """30 batches of 64 are 1.5 epochs, of which the second is cut short."""
  with pytest.raises(UserError, match=rf'is {off}: must be below {below}, the'):
    _schedule(mix_off_epochs=off, steps=steps)


def test_the_last_epochs_are_not_mixed():
  config, schedule = _schedule(mix_off_epochs=1)
  augment = augmentation.from_config(
      recipes.resolve(config), datasets.info('digits'), schedule, None
  )
  batch = {
      'image': jnp.zeros((4, 8, 8, 3), jnp.uint8),
      'label': jnp.array([0, 1, 2, 3]),
  }
  last = 3 * 1297 // 64  # updates before the last epoch
  run = jax.jit(lambda step: augment(jax.random.key(0), batch, step)[1])
  mixed, plain = run(last - 1), run(last)
  np.testing.assert_array_equal(plain, np.eye(10)[:4])
  assert (mixed != plain).any()


def test_training_accuracy_counts_the_dominant_label():
  """It is the class with the largest share of the target."""
  logits = jnp.tile(jnp.array([0.0, 1.0, 0.5]), (4, 1))
  targets = jnp.array(
      [[0.4, 0.6, 0.0], [0.1, 0.8, 0.1], [0.6, 0.4, 0.0], [0.0, 0.7, 0.3]]
  )
  _, (metrics, _) = losses.class_loss(lambda _: (logits, {}), 0, targets, 0)
  assert metrics['accuracy'] == 0.75
