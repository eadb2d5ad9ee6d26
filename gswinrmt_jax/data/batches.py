"""Batches of records, in an order that depends only on seed and step.

One chain of Grain's: rows are shuffled and repeated, each is decoded, and
batched. Images in memory are gathered a batch of rows at a time.
"""

from collections.abc import Callable, Iterator
import functools

import numpy as np

from gswinrmt_jax.data import parallel
from gswinrmt_jax.data.records import Arrays, Batch, OnTheFly

_ENDLESS = 2**40  # batches of training; no run has as many
_PART = 64  # most images that a thread decodes at a time

Records = Arrays | OnTheFly


def train_batches(
    records: Records,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    repeats: int = 1,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
  """Yields training batches endlessly, as a pure function of seed and step.

  Each epoch has its own order. Batches may span epochs, so that all are full
  and no record is dropped: batch s holds records s b to (s + 1) b - 1 of the
  concatenated shuffled epochs.

  With repeated augmentation (Hoffer et al. 2020, as in DeiT's code), an epoch
  holds the first n / repeats records of its order, each `repeats` times in a
  row. Within a batch, copies are moved apart because Mixup pairs neighbours.

  Random crops depend only on seed and position in the stream, so that a record
  is cropped differently each time.

  Args:
    records: The records, n of them.
    batch_size: Records in a batch, b.
    seed: Seed of the order.
    start_step: Index of the first batch. From there on, the stream equals an
      uninterrupted one, so a checkpoint needs only the step.
    repeats: Copies of each record in a row, at most a third of `batch_size`.
    share: Index of the part of each batch to read, and the number of equal,
      contiguous parts.

  Yields:
    The record index 'row' int32 [b], and what `gather` of the records or
    `OnTheFly.read` returns: usually 'image' uint8 [b h w 3], 'label' int32 [b].

  Raises:
    UserError: If a record cannot be decoded, or a worker is killed.
  """
  import grain  # Takes a second, which --help need not wait for.

  count = len(records)
  # Copies of a record have adjacent places in the stream. Sorted by place
  # modulo `repeats`, they are apart.
  places = np.argsort(np.arange(batch_size) % repeats, kind='stable').tolist()

  def position(index):
    step, place = divmod(index, batch_size)
    return step * batch_size + places[place]

  order = grain.MapDataset.range(count).seed(seed).shuffle().repeat()

  def row_at(index):
    epoch, offset = divmod(position(index), count)
    return order[epoch * count + offset // repeats]

  def generator(index):
    # Not Grain's `random_map`: these draws are those of earlier versions. The
    # generator is counter-based: the key alone determines what it draws.
    key = np.array([seed, position(index)], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))

  def gather(indices):
    rows = np.array([*map(row_at, indices)], np.int32)
    return {**records.gather(rows), 'row': rows}

  def read(index):
    row = row_at(index)
    rng = generator(index) if records.is_random else None
    return {**records.read(row, rng), 'row': np.int32(row)}

  return _stream(
      records,
      range(start_step, _ENDLESS),
      batch_size,
      share,
      read,
      gather,
      workers=getattr(records, 'workers', 0),
  )


def eval_batches(
    records: Records,
    *,
    batch_size: int,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
  """Yields every record once, in order, in batches of equal size.

  The last batch is padded with the last record and mask 0, so sums weighted by
  the mask count each record once. Images are decoded in threads: starting
  processes for each pass takes longer than most passes.

  The arguments are those of `train_batches`.

  Yields:
    'mask' float32 [b], and what `gather` of the records or `OnTheFly.read`
    returns.

  Raises:
    UserError: If a record cannot be decoded.
  """
  count = len(records)

  def gather(indices):
    rows = np.minimum(indices, count - 1)
    mask = np.float32(rows == indices)
    return {**records.gather(rows), 'mask': mask}

  @functools.cache
  def padding():
    return records.read(count - 1)

  def read(index):
    record = records.read(index) if index < count else padding()
    return {**record, 'mask': np.float32(index < count)}

  steps = range(-(-count // batch_size))
  return _stream(records, steps, batch_size, share, read, gather)


def _stream(
    records: Records,
    steps: range,
    batch_size: int,
    share: tuple[int, int],
    read: Callable[[int], Batch],
    gather: Callable[[range], Batch],
    workers: int = 0,
) -> Iterator[Batch]:
  """Yields batches of records.

  Args:
    records: The records.
    steps: Indices of the batches; batch s has the places s b to (s + 1) b - 1
      in the stream of all processes.
    batch_size: As in `train_batches`.
    share: As in `train_batches`.
    read: Returns the record of a place; for records that are decoded.
    gather: Returns those of adjacent places; for records in memory.
    workers: Processes that read; 0 for threads.
  """
  import grain

  process, processes = share
  size = batch_size // processes

  def first(step):
    """Returns the place where this process's part of a batch begins."""
    return steps[step] * batch_size + process * size

  if not isinstance(records, OnTheFly):
    # In memory, a call for each record would take longer than the copies, and
    # one thread hides all of the work from the loop.
    found = grain.MapDataset.range(len(steps)).map(
        lambda step: gather(range(first(step), first(step) + size))
    )
    return parallel.in_threads(found, threads=1)

  found = grain.MapDataset.range(len(steps) * size).map(
      lambda index: read(first(index // size) + index % size)
  )
  if workers:
    return parallel.in_processes(found.batch(size), workers)
  # Parts of a batch: a thread takes long for a whole one, and passing records
  # between threads one by one takes longer than decoding small images. All
  # threads together read at most about two batches ahead, or two images for
  # each core if these are more.
  part = min(_PART, -(-size // parallel.cores()))
  return parallel.in_threads(found.batch(part), batch=size)
