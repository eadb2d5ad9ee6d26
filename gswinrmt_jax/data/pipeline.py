"""From arrays in memory to batches; the order follows seed and step alone."""

from collections.abc import Iterator

import numpy as np

from gswinrmt_jax.data import datasets

Batch = dict[str, np.ndarray]


def train_batches(
    arrays: datasets.Arrays,
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
    arrays: The records.
    batch_size: Records in a batch.
    seed: Seeds the order.
    start_step: The first batch to yield; starting at s gives what the unbroken
      stream gives from s on, so that the step is all a checkpoint must hold.

  Yields:
    'image' uint8 [b h w 3] and 'label' int32 [b].
  """
  import grain  # A second to import, which --help need not wait for.

  # Grain orders indices, and rows are gathered a batch at a time: mapping over
  # single records costs many times as much, all of it in Python. No read
  # threads: there is nothing to wait for.
  order = grain.MapDataset.range(len(arrays)).seed(seed).shuffle().repeat()
  steps = order.batch(batch_size)[start_step:]
  options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  for rows in steps.to_iter_dataset(options):
    yield {'image': arrays.image[rows], 'label': arrays.label[rows]}


def eval_batches(
    arrays: datasets.Arrays, *, batch_size: int
) -> Iterator[Batch]:
  """Yields every record once, in order, in batches of one size.

  The last batch is padded with black images of label 0; their mask is 0, and
  sums weighted by the mask count each record once.

  Args:
    arrays: The records.
    batch_size: Records in a batch, padding included.

  Yields:
    'image' uint8 [b h w 3], 'label' int32 [b] and 'mask' float32 [b].
  """
  for start in range(0, len(arrays), batch_size):
    image = arrays.image[start : start + batch_size]
    label = arrays.label[start : start + batch_size]
    padding = batch_size - len(label)
    yield {
        'image': np.pad(image, ((0, padding), (0, 0), (0, 0), (0, 0))),
        'label': np.pad(label, (0, padding)),
        'mask': np.pad(np.ones(len(label), np.float32), (0, padding)),
    }
