"""Several updates in one call of the device: what it takes, what it does."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.train.train_state import TrainState
from gswinrmt_jax.train.train_step import Batch, Metrics, TrainStep


class Supply(NamedTuple):
  """What the device needs for up to `m` updates.

  Attributes:
    count: How many there are, int32; what lies behind them is not read.
    batches: By name `[m b ...]`, those of each update.
    records: Of what is on the device all the time, by name `[n ...]`; a batch
      has its rows, in 'row'. Empty if batches have all themselves.
  """

  count: jax.Array
  batches: Batch
  records: Batch

  def batch(self, index: int | jax.Array) -> Batch:
    """Returns the batch of one update, `[b ...]`."""
    batch = {name: array[index] for name, array in self.batches.items()}
    return with_records(batch, self.records)


def with_records(batch: Batch, records: Batch) -> Batch:
  """Returns a batch with what records on the device have for its rows.

  Args:
    batch: Has 'row' [b], if there are such records; a row behind the last one
      gets zeros.
    records: By name `[n ...]`.
  """
  gathered = {
      name: array.at[batch['row']].get(mode='fill', fill_value=0)
      for name, array in records.items()
  }
  return {**batch, **gathered}


Advance = Callable[[TrainState, Supply, jax.Array], tuple[TrainState, Metrics]]


def make_advance(train_step: TrainStep) -> Advance:
  """Returns `(state, supply, key) -> (state, metrics [m])`; the caller jits it.

  The number of updates is an argument of one loop rather than the length of a
  scan: there is one program to compile, wherever dispatches are cut, and it
  rounds alike wherever that is, so that a run may end and go on anywhere. A
  supply of one is no loop: on a CPU the gradients of convolutions are many
  times slower in one (jax-ml/jax#12868). It may differ from the loop in the
  last bit.

  Args:
    train_step: One update, as `step.make_train_step` returns it.
  """

  def advance(state, supply, key):
    most = jax.tree.leaves(supply.batches)[0].shape[0]

    def update(state, index):
      return train_step(state, supply.batch(index), key)

    if most == 1:
      state, metrics = update(state, 0)
      return state, jax.tree.map(lambda value: value[None], metrics)

    def body(index, carry):
      state, gathered = carry
      state, metrics = update(state, index)
      gathered = jax.tree.map(
          lambda values, value: values.at[index].set(value), gathered, metrics
      )
      return state, gathered

    _, shapes = jax.eval_shape(update, state, 0)
    empty = jax.tree.map(lambda of: jnp.zeros((most,), of.dtype), shapes)
    return jax.lax.fori_loop(0, supply.count, body, (state, empty))

  return advance


def jit_advance(
    advance: Advance,
    placing: mesh.Devices,
    state: TrainState,
    compiler_options: Mapping[str, Any] | None = None,
) -> Advance:
  """Returns `advance` jitted; it takes over the state's memory.

  Args:
    advance: As `make_advance` returns it.
    placing: Where state and supply are.
    state: Or its shapes.
    compiler_options: Of XLA.
  """
  of_state = placing.shardings(state)
  of_supply = Supply(
      placing.replicated, placing.split_steps, placing.replicated
  )
  return jax.jit(
      advance,
      donate_argnums=0,
      in_shardings=(of_state, of_supply, placing.replicated),
      out_shardings=(of_state, placing.replicated),
      compiler_options=compiler_options,
  )
