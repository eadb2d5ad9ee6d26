"""From records to batches; the order follows seed and step alone."""

from collections.abc import Iterator

import numpy as np

from gswinrmt_jax.data import records as records_lib
from gswinrmt_jax.data.records import Batch

Records = records_lib.Arrays | records_lib.Decoded


def train_batches(
    records: Records,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
) -> Iterator[Batch]:
  """Yields endless training batches, a pure function of seed and step.

  Every epoch has its own order. Batches straddle epochs, so that none is short
  and no record is dropped: batch s holds records s b to (s + 1) b - 1 of the
  shuffled epochs laid end to end.

  Args:
    records: The records.
    batch_size: Records in a batch.
    seed: Seeds the order.
    start_step: The first batch to yield; starting at s gives what the unbroken
      stream gives from s on, so that the step is all a checkpoint must hold.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and, which record it is, 'row'
    int32 [b].
  """
  import grain  # A second to import, which --help need not wait for.

  # Grain orders indices, and rows are gathered a batch at a time: mapping over
  # single records costs many times as much, all of it in Python. No read
  # threads: there is nothing to wait for.
  order = grain.MapDataset.range(len(records)).seed(seed).shuffle().repeat()
  steps = order.batch(batch_size)[start_step:]
  options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  for rows in steps.to_iter_dataset(options):
    yield {**records.gather(rows), 'row': rows.astype(np.int32)}


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
  for start in range(0, len(records), batch_size):
    stop = min(start + batch_size, len(records))
    batch = records.gather(np.arange(start, stop))
    batch['mask'] = np.ones(stop - start, np.float32)
    padding = batch_size - (stop - start)
    yield {
        name: np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1))
        for name, array in batch.items()
    }
