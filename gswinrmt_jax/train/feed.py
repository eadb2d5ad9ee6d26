"""What the loop feeds the devices: the data of several steps at a time."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import jax
import ml_collections
import numpy as np

from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.train import dispatch, resident, setup, token_labels

# Where nothing is said, on an accelerator: so many steps that the host has
# time, and no more than this of data in each of two dispatches.
_STEPS = 50
_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class Dispatch:
  """Updates that the devices make in one call.

  Attributes:
    steps: Their numbers, from 1.
    supply: Their data, on the devices.
  """

  steps: range
  supply: dispatch.Supply

  @property
  def last(self) -> int:
    """Updates made when it is done."""
    return self.steps[-1]


class Feed:
  """An iterator over the dispatches of a run, to the end of its plan.

  Batches are the same wherever records are: read and decoded as they are
  needed, in files, in memory, or on the devices, in which case they get row
  numbers alone. The order is that of `batches.train_batches` always.
  """

  def __init__(self, of: setup.Parts, start: int):
    """Begins after `start` updates."""
    config = of.config
    self._opened = batches_lib.train_batches(
        of.train_data,
        batch_size=config.batch_size,
        seed=config.seed,
        start_step=start,
        repeats=config.data.repeats,
        share=processes.share(),
    )
    self._batches = self._opened
    if of.maps:
      self._batches = token_labels.with_maps(self._batches, of.maps)
    self._place = of.devices.put_steps
    self._records = resident.arrays(of.train_data)
    self._most = steps_per_dispatch(config, of.train_data)
    self._steps = of.plan.dispatches(start, self._most)

  def __iter__(self) -> 'Feed':
    return self

  def __next__(self) -> Dispatch:
    """Returns the next dispatch; waits for its batches if they are not ready.

    Raises:
      UserError: If a record cannot be decoded, or a worker is killed.
    """
    steps = next(self._steps)
    batches = [next(self._batches) for _ in steps]
    supply = dispatch.Supply(
        np.int32(len(steps)),
        self._place(_stack(batches, self._most)),
        self._records,
    )
    return Dispatch(steps, supply)

  def close(self) -> None:
    """Ends the workers."""
    self._opened.close()


def steps_per_dispatch(config: ml_collections.ConfigDict, records: Any) -> int:
  """Returns the most steps of a dispatch: the recipe's, or what suits.

  They are no more than are logged at once. On a CPU one suits; elsewhere at
  least two, so that the program is a loop (`dispatch.make_advance`) and rounds
  as one, whatever is logged or stored how.

  Args:
    config: A recipe.
    records: Those that it trains on, wherever they are.
  """
  asked = config.steps_per_dispatch
  if asked == 1 or (not asked and jax.default_backend() == 'cpu'):
    return 1
  most = min(asked or _STEPS, config.log_every_steps)
  if not asked and not resident.arrays(records):
    size = config.batch_size * math.prod(records.image_shape)
    most = min(most, _BYTES // size)
  return max(2, most)


def _stack(
    batches: Sequence[Mapping[str, np.ndarray]], most: int
) -> dict[str, np.ndarray]:
  """Returns `[most b ...]`, zeros behind the last batch."""
  if most == 1:
    return {name: array[None] for name, array in batches[0].items()}
  stacked = {
      name: np.zeros((most, *array.shape), array.dtype)
      for name, array in batches[0].items()
  }
  for index, batch in enumerate(batches):
    for name, array in batch.items():
      stacked[name][index] = array
  return stacked
