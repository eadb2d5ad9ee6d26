"""From records to batches; the order follows seed and step alone."""

from collections.abc import Iterator
import gc
from typing import Any

import numpy as np

from gswinrmt_jax.data import workers as workers_lib
from gswinrmt_jax.data.cropped import Cropped
from gswinrmt_jax.data.records import Arrays, Batch, Decoded

Records = Arrays | Decoded

_AHEAD = 2  # batches that each worker holds ready
# More than any run has. Endless, as Grain means it, has no length in batches.
_EPOCHS = 1_000_000


def train_batches(
    records: Records | Cropped,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    repeats: int = 1,
) -> Iterator[Batch]:
  """Yields endless training batches, a pure function of seed and step.

  Every epoch has its own order. Batches straddle epochs, so that none is short
  and no record is dropped: batch s holds records s b to (s + 1) b - 1 of the
  shuffled epochs laid end to end.

  With repeats (Hoffer et al. 2020, as DeiT released it) an epoch holds the
  first n / repeats records of its order, each of them `repeats` times in a row.
  Within a batch they are put apart, since Mixup's partners are neighbours.

  Args:
    records: The records.
    batch_size: Records in a batch.
    seed: Seeds the order.
    start_step: The first batch to yield; starting at s gives what the unbroken
      stream gives from s on, so that the step is all a checkpoint must hold.
    repeats: Times that a record is seen in a row; a batch has at least three
      times as many records.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and, which record it is, 'row'
    int32 [b]; of `Cropped` records 'box' as well.
  """
  import grain  # A second to import, which --help need not wait for.

  count = len(records)
  order = grain.MapDataset.range(count).seed(seed).shuffle()
  if repeats > 1:
    shuffled = order

    def repeated(position, _):
      epoch, place = divmod(position, count)
      return shuffled[epoch * count + place // repeats]

    order = shuffled.map_with_index(repeated)

  # Copies of a record are in places k, k + 1, ...: first come those that are
  # the first of their kind, counted from the batch's start, then the second.
  places = np.argsort(np.arange(batch_size) % repeats, kind='stable')

  def gather(step, rows):
    rows = rows[places].astype(np.int32)
    if isinstance(records, Cropped):
      return records.gather(rows, seed, step * batch_size + places)
    return {**records.gather(rows), 'row': rows}

  steps = order.repeat(_EPOCHS).batch(batch_size).map_with_index(gather)
  yield from _iterate(steps[start_step:], records.workers)


def eval_batches(records: Records, *, batch_size: int) -> Iterator[Batch]:
  """Yields every record once, in order, in batches of one size.

  The last batch is padded with black images of label 0; their mask is 0, and
  sums weighted by the mask count each record once.

  Args:
    records: The records.
    batch_size: Records in a batch, padding included.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and 'mask' float32 [b].
  """
  import grain

  def gather(rows):
    batch = records.gather(rows)
    batch['mask'] = np.ones(len(rows), np.float32)
    padding = batch_size - len(rows)
    return {
        name: np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1))
        for name, array in batch.items()
    }

  steps = grain.MapDataset.range(len(records)).batch(batch_size)
  yield from _iterate(steps.map(gather), records.workers)


def _iterate(steps: Any, workers: int) -> Iterator[Batch]:
  """Yields the batches of all steps.

  Args:
    steps: Grain's `MapDataset` of batches: mapping over single records costs
      many times as much, all of it in Python.
    workers: Processes to make them in; with 0 it is done here, and by no other
      thread, since there is nothing to wait for.
  """
  from absl import flags
  import grain

  options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  batches = steps.to_iter_dataset(options)
  if workers:
    if not flags.FLAGS.is_parsed():  # Grain has flags and asks for them.
      flags.FLAGS.mark_as_parsed()
    batches = batches.mp_prefetch(
        grain.MultiprocessingOptions(workers, per_worker_buffer_size=_AHEAD),
        worker_init_fn=workers_lib.begin,
    )
  iterator = iter(batches)
  try:
    for batch in iterator:
      if workers:  # Shared memory, which ends with the workers.
        batch = {name: np.array(array) for name, array in batch.items()}
      yield batch
  finally:
    iterator.close()
    if workers:
      del iterator  # It is in a cycle that holds the last shared memory.
      gc.collect()
