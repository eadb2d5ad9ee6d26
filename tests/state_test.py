"""The state before the first update."""

import jax
import jax.numpy as jnp
import optax
import tiny

from gswinrmt_jax.train import train_state as state_lib


def test_create_is_float32_and_follows_the_key():
  def create(seed):
    return state_lib.create(
        tiny.Tiny(), optax.adamw(1.0), jax.random.key(seed), (6, 7, 3)
    )

  first, again, other = create(0), create(0), create(1)
  assert first.step.dtype == jnp.int32 and int(first.step) == 0
  assert {leaf.dtype for leaf in jax.tree.leaves(first.variables)} == {
      jnp.dtype('float32')
  }
  kernel = first.params['conv']['kernel']
  assert jnp.array_equal(kernel, again.params['conv']['kernel'])
  assert not jnp.array_equal(kernel, other.params['conv']['kernel'])
  assert set(first.variables) == {'params', 'batch_stats'}
