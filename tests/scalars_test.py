"""What is told of a state beside the metrics of its steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.train import optimizer, scalars
from gswinrmt_jax.train import train_state as state_lib


def test_decay_range():
  params = {
      'a': {'decay_logit': jnp.array([[0.0], [1.0]])},
      'b': {'decay_logit': jnp.array([[-2.0, 0.5], [0.0, 0.0]]), 'kernel': 9.0},
  }
  found = scalars.decay_range(params)
  assert found['gamma_min'] == pytest.approx(1 / (1 + np.exp(2)))
  assert found['gamma_max'] == pytest.approx(1 / (1 + np.exp(-1)))
  assert scalars.decay_range({'kernel': jnp.ones(3)}) == {}


def test_the_learning_rate_is_that_of_the_last_update():
  schedule = optax.linear_schedule(3.0, 1.0, 2)
  tx = optimizer.make_optimizer(
      schedule, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0
  )
  params = {'decay_logit': jnp.ones(2)}
  placing = mesh.Devices(1, 1)
  state = placing.place(
      state_lib.TrainState(jnp.int32(7), params, {}, tx.init(params))
  )
  compiled = scalars.compiled(schedule, placing.target(state), placing)
  found, gamma = [], 1 / (1 + np.exp(-1))
  for _ in range(4):
    told = compiled(state)
    found.append(float(told.pop('learning_rate')))
    assert told == pytest.approx({'gamma_min': gamma, 'gamma_max': gamma})
    # Of parameters that stay: what counts is the number of updates.
    _, opt_state = jax.jit(tx.update)(params, state.opt_state, params)
    state = placing.place(state.replace(opt_state=opt_state))
  assert found == [3.0, 3.0, 2.0, 1.0]
