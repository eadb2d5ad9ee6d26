"""Batches of records, in an order that depends only on seed and step."""

from collections.abc import Iterator
import contextlib

import numpy as np

from gswinrmt_jax.data import detection, parallel, segmentation
from gswinrmt_jax.data.records import Arrays, Batch, Decoded, Rows

Records = Arrays | Decoded | segmentation.Decoded | detection.Decoded
Stream = Records | Rows  # sources of batches

_EPOCHS = 10**6  # more than any run has
_PART = 64  # most images that a thread decodes at a time


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
  concatenated shuffled epochs. Row numbers are shuffled and batched, and each
  batch is gathered at once, which is faster than record by record.

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
    per-pixel labels, see `segmentation.Decoded`, detection objects, see
    `detection.Decoded`.

  Raises:
    UserError: If a record cannot be decoded, or a worker is killed.
  """
  import grain  # Takes a second, which --help need not wait for.

  count = len(records)
  # Copies of a record have adjacent places. Sorted by place modulo `repeats`,
  # they are apart.
  places = np.argsort(np.arange(batch_size) % repeats, kind='stable')
  position = _positions(places, share)
  order = grain.MapDataset.range(count).seed(seed).shuffle().repeat(_EPOCHS)
  rows = order
  if repeats > 1 or share[1] > 1:

    def copy(index, _):
      epoch, offset = divmod(position(index).item(), count)
      return order[epoch * count + offset // repeats]

    rows = grain.MapDataset.range(count).repeat(_EPOCHS).map_with_index(copy)

  def gather(index, rows):
    if isinstance(records, Rows):
      return {'row': rows}
    if isinstance(records, Arrays):
      return {**records.gather(rows), 'row': rows}
    # Not Grain's `random_map`: these draws are those of earlier versions.
    positions = position(index * len(rows) + np.arange(len(rows)))
    return {**records.gather(rows, seed, positions), 'row': rows}

  size = batch_size // share[1]
  part = _part(records, size, records.workers)
  dataset = rows.batch(part, batch_fn=_int32).map_with_index(gather)
  dataset = dataset[start_step * size // part :]
  if records.workers:
    return parallel.in_processes(dataset, records.workers)
  return _joined(records, dataset, size // part)


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
    Segmentation has per-pixel labels and extents, see `segmentation.Decoded`;
    detection extents and rows, see `detection.Decoded`.

  Raises:
    UserError: If a record cannot be decoded.
  """
  import grain

  count = len(records)
  position = _positions(np.arange(batch_size), share)

  def gather(indices):
    positions = position(indices)
    mask = np.float32(positions < count)
    if isinstance(records, Rows):
      return {'row': np.int32(np.minimum(positions, count)), 'mask': mask}
    batch = records.gather(positions[positions < count])
    return {**_padded(batch, len(positions)), 'mask': mask}

  size = batch_size // share[1]
  part = _part(records, size)
  indices = grain.MapDataset.range(-(-count // batch_size) * size)
  dataset = indices.batch(part, batch_fn=np.array).map(gather)
  return _joined(records, dataset, size // part)


def _positions(places, share):
  """Returns the function from a process's records to those of all processes.

  Args:
    places: The place in the batch of each of its records, `[b]`.
    share: As in `train_batches`.
  """
  batch_size, places = len(places), np.split(places, share[1])[share[0]]

  def position(index):
    step, place = np.divmod(index, len(places))
    return step * batch_size + places[place]

  return position


def _int32(rows):
  return np.array(rows, np.int32)


def _part(records, size, workers=0):
  """Returns how many records of a batch are gathered at a time, a divisor."""
  if workers or isinstance(records, (Arrays, Rows)):
    return size
  return max(part for part in range(1, _PART + 1) if size % part == 0)


def _joined(records, dataset, parts):
  """Yields batches, each of this many parts, which threads decode ahead."""
  # In memory, one thread hides all of the work from the loop.
  threads = 1 if isinstance(records, (Arrays, Rows)) else None
  dataset = dataset.to_iter_dataset(parallel.read_ahead(threads))
  if parts > 1:
    dataset = dataset.batch(parts, batch_fn=_concatenated)
  iterator = iter(dataset)
  with contextlib.closing(iterator):
    yield from iterator


def _concatenated(parts):
  return {
      name: np.concatenate([part[name] for part in parts]) for name in parts[0]
  }


def _padded(batch: Batch, size: int) -> Batch:
  """Returns the batch, padded with black images to `size` records."""
  count = len(batch['image'])
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
