"""From records to batches; the order depends on the seed and step alone."""

from collections.abc import Callable, Iterator
import contextlib
import itertools

import numpy as np

from gswinrmt_jax.data import parallel, segmentation
from gswinrmt_jax.data.records import Arrays, Batch, Records, Rows

# What batches are made of.
Stream = Records | Rows | segmentation.Decoded

_PART = 64  # images that a thread decodes at a time
_STEPS = 10**12  # more than any run has


def train_batches(
    records: Stream,
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

  With repeated augmentation (Hoffer et al. 2020, as in DeiT's code) an epoch
  holds the first n / repeats records of its order, each `repeats` times in a
  row. Within a batch the copies are moved apart, since Mixup pairs neighbours.

  Args:
    records: The records, n of them.
    batch_size: Records in a batch, b.
    seed: Seed of the order.
    start_step: The first batch to yield; starting at s gives what the unbroken
      stream gives from s on, so that a checkpoint needs only the step.
    repeats: Times that a record is seen in a row; a batch has at least three
      times as many records.
    share: Which part of each batch to read, from 0, and the number of equal
      parts; the parts of a batch follow each other.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and the record's number 'row'
    int32 [b]; with random crops also 'box', with `Rows` only 'row'. The records
    of segmentation have labels of pixels, see `segmentation.Decoded`.

  Raises:
    UserError: If a record cannot be decoded, or a worker is killed.
  """
  import grain  # A second to import, which --help need not wait for.

  count = len(records)
  order = grain.MapDataset.range(count).seed(seed).shuffle()
  # Copies of a record are in places k, k + 1, ...: first come those that are
  # the first of their kind, counted from the batch's start, then the second.
  places = np.argsort(np.arange(batch_size) % repeats, kind='stable')
  places = np.split(places, share[1])[share[0]]

  def gather(step, part):
    positions = step * batch_size + places[part]
    epochs, offsets = np.divmod(positions, count)
    indices = epochs * count + offsets // repeats
    rows = np.array([order[index] for index in indices.tolist()], np.int32)
    if isinstance(records, Rows):
      return {'row': rows}
    drawn = () if isinstance(records, Arrays) else (seed, positions)
    return {**records.gather(rows, *drawn), 'row': rows}

  steps = range(start_step, _STEPS)
  if isinstance(records, (Arrays, Rows)):
    return (gather(step, slice(None)) for step in steps)
  if records.workers:
    return parallel.in_processes(
        lambda index: gather(steps[index], slice(None)),
        len(steps),
        records.workers,
    )
  return _in_threads(gather, steps, len(places))


def eval_batches(
    records: Stream,
    *,
    batch_size: int,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
  """Yields every record once, in order, in batches of one size.

  The last batch is padded with black images of label 0 whose mask is 0, so
  that sums weighted by the mask count each record once. Images are decoded in
  threads: starting processes for each pass takes longer than most passes.

  Args:
    records: The records, n of them.
    batch_size: Records in a batch, padding included.
    share: Which part of each batch to read, as in `train_batches`.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and 'mask' float32 [b]; with
    `Rows` 'row' int32 [b] in place of the first two, n where padded; for
    segmentation the labels of pixels and 'extents' int32 [b 2], see
    `segmentation.Decoded`.

  Raises:
    UserError: If a record cannot be decoded.
  """
  count = len(records)
  places = np.split(np.arange(batch_size), share[1])[share[0]]

  def gather(step, part):
    positions = step * batch_size + places[part]
    mask = np.float32(positions < count)
    if isinstance(records, Rows):
      return {'row': np.int32(np.minimum(positions, count)), 'mask': mask}
    batch = records.gather(positions[positions < count])
    return {**_padded(batch, len(positions)), 'mask': mask}

  steps = range(-(-count // batch_size))
  if isinstance(records, (Arrays, Rows)):
    return (gather(step, slice(None)) for step in steps)
  return _in_threads(gather, steps, len(places))


def _padded(batch: Batch, size: int) -> Batch:
  """Returns the batch, filled up with black images to `size` records."""
  missing = size - len(batch['label'])
  if not missing:
    return batch
  padded = {
      name: np.pad(array, ((0, missing),) + ((0, 0),) * (array.ndim - 1))
      for name, array in batch.items()
  }
  if 'extents' in padded:  # A mean over no pixels would not be a number.
    padded['extents'][-missing:] = padded['image'].shape[1:3]
  return padded


def _in_threads(
    gather: Callable[[int, slice], Batch], steps: range, size: int
) -> Iterator[Batch]:
  """Yields `gather` of all steps, the parts of a batch decoded in parallel."""
  parts = [slice(start, start + _PART) for start in range(0, size, _PART)]

  def read(index):
    step, part = divmod(index, len(parts))
    return gather(steps[step], parts[part])

  stream = parallel.in_threads(read, len(steps) * len(parts))
  with contextlib.closing(stream):
    while batch := list(itertools.islice(stream, len(parts))):
      yield {
          name: np.concatenate([part[name] for part in batch])
          for name in batch[0]
      }
