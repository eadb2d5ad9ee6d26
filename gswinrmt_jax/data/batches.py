"""Batches of records, in an order that depends only on seed and step."""

from collections.abc import Iterator
import contextlib
import itertools

import numpy as np

from gswinrmt_jax.data import parallel, segmentation
from gswinrmt_jax.data.records import Arrays, Batch, Decoded, Rows

Records = Arrays | Decoded | segmentation.Decoded
Stream = Records | Rows  # sources of batches

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
  """Yields training batches endlessly, as a pure function of seed and step.

  Each epoch has its own order. Batches may span epochs, so that all are full
  and no record is dropped: batch s holds records s b to (s + 1) b - 1 of the
  concatenated shuffled epochs.

  With repeated augmentation (Hoffer et al. 2020, as in DeiT's code), an epoch
  holds the first n / repeats records of its order, each `repeats` times in a
  row. Within a batch, copies are moved apart because Mixup pairs neighbours.

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
    'image' uint8 [b h w 3], 'label' int32 [b] and the record index 'row' int32
    [b]; with random crops also 'box', with `Rows` only 'row'. Segmentation has
    per-pixel labels, see `segmentation.Decoded`.

  Raises:
    UserError: If a record cannot be decoded, or a worker is killed.
  """
  import grain  # Takes a second, which --help need not wait for.

  count = len(records)
  order = grain.MapDataset.range(count).seed(seed).shuffle()
  # Copies of a record have adjacent places. Sorted by place modulo `repeats`,
  # they are apart.
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
  if records.workers:
    return parallel.in_processes(
        lambda index: gather(steps[index], slice(None)),
        len(steps),
        records.workers,
    )
  return _batches(records, gather, steps, len(places))


def eval_batches(
    records: Stream,
    *,
    batch_size: int,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Batch]:
  """Yields every record once, in order, in batches of equal size.

  The last batch is padded with black images of label 0 and mask 0, so sums
  weighted by the mask count each record once. Images are decoded in threads:
  starting processes for each pass takes longer than most passes.

  The arguments are those of `train_batches`.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and 'mask' float32 [b]. With
    `Rows`, 'row' int32 [b] replaces the first two and is n in the padding.
    Segmentation has per-pixel labels and extents, see `segmentation.Decoded`.

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
  return _batches(records, gather, steps, len(places))


def _padded(batch: Batch, size: int) -> Batch:
  """Returns the batch, padded with black images to `size` records."""
  count = len(batch['label'])
  if count == size:
    return batch
  padded = {
      name: np.pad(array, [(0, size - count)] + [(0, 0)] * (array.ndim - 1))
      for name, array in batch.items()
  }
  # A mean over no pixels would not be a number.
  for name, of in (('extents', 'image'), ('label_extents', 'label')):
    if name in padded:
      padded[name][count:] = padded[of].shape[1:3]
  return padded


def _batches(records, gather, steps, size):
  """Yields the batches of all steps; decodes the parts of each in threads.

  `gather(step, part)` returns a slice of a batch, which has `size` records.
  """
  if isinstance(records, (Arrays, Rows)):
    for step in steps:
      yield gather(step, slice(None))
    return
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
