"""The schedule value by value, and what decays."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.training import optimizer


def test_schedule_value_by_value():
  schedule = optimizer.learning_rate_schedule(
      2.0, warmup_steps=4, total_steps=10
  )
  warmup = [0.0, 0.5, 1.0, 1.5]
  cosine = [1 + math.cos(math.pi * t / 6) for t in range(7)]
  np.testing.assert_allclose(
      [float(schedule(t)) for t in range(11)], warmup + cosine, atol=1e-6
  )
  assert float(schedule(4)) == 2.0
  assert abs(float(schedule(10))) < 1e-6


def test_schedule_without_warmup_starts_at_the_peak():
  schedule = optimizer.learning_rate_schedule(
      2.0, warmup_steps=0, total_steps=4
  )
  np.testing.assert_allclose(
      [float(schedule(t)) for t in (0, 2, 4)], [2.0, 1.0, 0.0], atol=1e-6
  )


def test_schedule_refuses_a_warmup_as_long_as_the_run():
  with pytest.raises(UserError, match='warmup_epochs'):
    optimizer.learning_rate_schedule(1.0, warmup_steps=7, total_steps=7)


PARAMS = {
    'stem': {
        'conv0': {'kernel': jnp.ones((3, 3, 2, 5)), 'bias': jnp.ones(5)},
        'norm0': {'scale': jnp.ones(5), 'bias': jnp.ones(5)},
    },
    'stage1': {
        'block00': {
            'position': {'kernel': jnp.ones((3, 3, 1, 5)), 'bias': jnp.ones(5)},
            'attention': {'decay_logit': jnp.ones((2, 1))},
            'ffn_scale': jnp.ones(5),
        }
    },
}
KERNELS = {'stem/conv0/kernel', 'stage1/block00/position/kernel'}


def _paths(tree):
  return {
      '/'.join(entry.key for entry in path): leaf
      for path, leaf in jax.tree.leaves_with_path(tree)
  }


def test_only_kernels_decay_by_path():
  mask = _paths(optimizer.decay_mask(PARAMS))
  assert {path for path, decays in mask.items() if decays} == KERNELS


def test_the_update_is_adam_plus_decoupled_decay():
  """At the first step Adam's ratio is g / (|g| + eps): 1 for any g > 0."""
  tx = optimizer.make_optimizer(
      lambda _: 0.5, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.25
  )
  grads = jax.tree.map(lambda leaf: 3.0 * jnp.ones_like(leaf), PARAMS)
  updates, _ = tx.update(grads, tx.init(PARAMS), PARAMS)
  for path, update in _paths(updates).items():
    expected = -0.5 * (1 + 0.25) if path in KERNELS else -0.5
    np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=path)
