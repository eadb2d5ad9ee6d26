"""Numbers that are told of a state, beside its steps' metrics."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from gswinrmt_jax.distributed import compilation, mesh
from gswinrmt_jax.train import optimizer
from gswinrmt_jax.train.train_state import TrainState
from gswinrmt_jax.train.train_step import Metrics

Scalars = Callable[[TrainState], Metrics]


def compiled(
    schedule: optax.Schedule, target: TrainState, placing: mesh.Devices
) -> Scalars:
  """Returns what computes them, as one program.

  It is given a state before the next steps are sent, so that the device has
  the numbers before those: of single operations behind them the host would
  wait for all.

  Args:
    schedule: The learning rate by update.
    target: The state's shapes, with shardings.
    placing: Where it is.

  Returns:
    `state -> {'learning_rate', 'gamma_min', 'gamma_max'}`: the rate is that of
    the last update, the others as `decay_range` says.
  """

  def scalars(state):
    rate = optimizer.last_learning_rate(schedule, state.opt_state)
    return {'learning_rate': rate, **decay_range(state.params)}

  program = jax.jit(
      scalars,
      out_shardings=placing.replicated,
      compiler_options=mesh.quick_compilation(),
  )
  return compilation.compiled(compilation.lowered(program, target))


def decay_range(params: Any) -> Metrics:
  """Returns the least and greatest learnable decay, `gamma = sigmoid(theta)`.

  Args:
    params: Any tree; its leaves named `decay_logit` are the thetas.

  Returns:
    `gamma_min` and `gamma_max`, or nothing where no decay is learnt.
  """
  thetas = [
      leaf.ravel()
      for path, leaf in jax.tree.leaves_with_path(params)
      if path[-1].key == 'decay_logit'
  ]
  if not thetas:
    return {}
  gamma = jax.nn.sigmoid(jnp.concatenate(thetas))
  return {'gamma_min': gamma.min(), 'gamma_max': gamma.max()}
