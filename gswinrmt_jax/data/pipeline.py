"""From records to batches; the order follows seed and step alone."""

from collections.abc import Iterator
import contextlib
import gc
import itertools
from typing import Any

import numpy as np

from gswinrmt_jax.data import machine
from gswinrmt_jax.data import workers as workers_lib
from gswinrmt_jax.data.cropped import Cropped
from gswinrmt_jax.data.records import (
    Arrays,
    Batch,
    decode_ahead,
    Decoded,
    Rows,
)
from gswinrmt_jax.errors import UserError

Records = Arrays | Decoded

AHEAD = 2  # batches that each worker holds ready
_PART = 64  # records of a batch that a thread decodes for evaluation
# More than any run has. Endless, as Grain means it, has no length in batches.
_EPOCHS = 1_000_000


def train_batches(
    records: Records | Cropped | Rows,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    repeats: int = 1,
    share: tuple[int, int] = (0, 1),
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
    share: Which part of each batch to read, from 0, and of how many equal ones
      it is; the parts of a batch follow each other.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and, which record it is, 'row'
    int32 [b]; of `Cropped` records 'box' as well, of `Rows` the row alone.

  Raises:
    UserError: If a record cannot be decoded, or a worker is killed.
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
  places = places[_part(batch_size, share)]

  def gather(step, rows):
    rows = rows[places].astype(np.int32)
    if isinstance(records, Cropped):
      return records.gather(rows, seed, step * batch_size + places)
    return {**records.gather(rows), 'row': rows}

  if records.workers:
    _say_if_too_small(records, len(places))
  steps = order.repeat(_EPOCHS).batch(batch_size).map_with_index(gather)
  yield from _iterate(steps[start_step:], records.workers)


def eval_batches(
    records: Records | Rows,
    *,
    batch_size: int,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
  """Yields every record once, in order, in batches of one size.

  The last batch is padded with black images of label 0; their mask is 0, and
  sums weighted by the mask count each record once. What is not decoded yet is
  by threads, ahead of time: processes would have to be begun anew at each pass,
  which takes longer than most of them do.

  Args:
    records: The records.
    batch_size: Records in a batch, padding included.
    share: Which part of each batch to read, as in `train_batches`.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and 'mask' float32 [b]; of `Rows`
    'row' int32 [b] in place of the first two, that of the padding n.

  Raises:
    UserError: If a record cannot be decoded.
  """
  part, every = _part(batch_size, share), range(len(records))
  starts = range(0, len(records), batch_size)
  batches = [every[s : s + batch_size][part] for s in starts]
  size, shape = part.stop - part.start, records.image_shape
  if isinstance(records, Rows):
    for batch in batches:
      row = np.full(size, len(records), np.int32)
      row[: len(batch)] = batch
      yield {'row': row, 'mask': np.float32(row < len(records))}
    return
  if isinstance(records, Arrays):
    yield from (_padded([records.gather(b)], size, shape) for b in batches)
    return
  parts = [[b[i : i + _PART] for i in range(0, len(b), _PART)] for b in batches]
  flat = itertools.chain.from_iterable(parts)
  with contextlib.closing(decode_ahead(records, flat)) as decoded:
    for of_batch in parts:
      whole = list(itertools.islice(decoded, len(of_batch)))
      yield _padded(whole, size, shape)


def _part(batch_size, share):
  """Returns the part of a batch that a share is."""
  index, count = share
  size = batch_size // count
  return slice(index * size, (index + 1) * size)


def _padded(parts, batch_size, image_shape):
  """Joins the parts of a batch, fills it up and says what is filling."""
  count = sum(len(part['label']) for part in parts)
  if len(parts) == 1 and count == batch_size:
    return {**parts[0], 'mask': np.ones(batch_size, np.float32)}
  batch = {
      'image': np.zeros((batch_size, *image_shape), np.uint8),
      'label': np.zeros(batch_size, np.int32),
      'mask': np.zeros(batch_size, np.float32),
  }
  batch['mask'][:count] = 1
  stop = 0
  for part in parts:
    start, stop = stop, stop + len(part['label'])
    for name, array in part.items():
      batch[name][start:stop] = array
  return batch


def _say_if_too_small(records, batch_size):
  """Says in a line if the workers' batches will not fit into shared memory."""
  image = int(np.prod(records.image_shape))
  size = batch_size * image * AHEAD * records.workers
  room = machine.free_shared_memory()
  if room is not None and size > room:
    print(
        f'{records.workers} workers need up to {size / 1e9:.1f} GB of '
        f'/dev/shm, which has {room / 1e9:.1f} GB free: enlarge it, or lower '
        'config.data.workers or config.batch_size',
        flush=True,
    )


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
        grain.MultiprocessingOptions(workers, per_worker_buffer_size=AHEAD),
        worker_init_fn=workers_lib.begin,
    )
  iterator = iter(batches)
  try:
    for batch in _while_workers_live(iterator):
      if workers:  # Shared memory, which ends with the workers.
        batch = {name: np.array(array) for name, array in batch.items()}
      yield batch
  finally:
    iterator.close()
    if workers:
      del iterator  # It is in a cycle that holds the last shared memory.
      gc.collect()


def _while_workers_live(iterator):
  try:
    yield from iterator
  except RuntimeError as error:
    if 'terminated unexpectedly' not in str(error):  # As Grain says it.
      raise
    raise UserError(
        'a worker that decodes images was killed, as happens when memory or '
        '/dev/shm is full: free or enlarge it, or lower config.data.workers '
        'or config.batch_size'
    ) from error
