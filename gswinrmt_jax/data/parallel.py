"""Threads and worker processes that read ahead, and their progress bar."""

from collections.abc import Iterable, Iterator
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
from typing import Any, TypeVar

import numpy as np

from gswinrmt_jax.errors import UserError

AHEAD = 2  # elements that each thread, or batches that each worker, prefetches
_LINE = '{desc}: {n_fmt} of {total_fmt}, {rate_fmt}, ETA {remaining}'
_MINUTE = 60.0  # seconds between lines in a log
_T = TypeVar('_T')


def cores() -> int:
  """Returns how many cores this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def with_bar(
    items: Iterable[_T], title: str, count: int, unit: str = 'img', **how: Any
) -> Iterable[_T]:
  """Wraps items in a progress bar of tqdm; in a log, it is a line a minute."""
  import tqdm

  if not sys.stderr:
    return items
  if not sys.stderr.isatty():
    how |= {'file': _Log(), 'bar_format': _LINE, 'leave': False}
    # With `miniters` of its own, tqdm would print every ten seconds.
    how |= {'mininterval': _MINUTE, 'delay': _MINUTE, 'miniters': 1}
  return tqdm.tqdm(items, title, count, unit=unit, **how)


class _Log:
  """Writes the states of a bar to stderr, each in a line, while it can."""

  def write(self, text: str) -> None:
    """Writes a state, without the controls that would draw it in place."""
    with contextlib.suppress(OSError):  # Its reader is gone, or a disk full.
      if text := text.strip():
        print(text, file=sys.stderr, flush=True)

  def flush(self) -> None:
    """Does nothing: every line is flushed."""


def in_threads(
    dataset: Any, threads: int | None = None, batch: int | None = None
) -> Iterator[Any]:
  """Yields the elements of a Grain data set in order, read ahead by threads.

  Args:
    dataset: A `grain.MapDataset`.
    threads: Number of threads; None for one per core: Pillow releases the GIL
      while decoding.
    batch: Number of records in the batches to make of the elements, which are
      parts of batches; None yields the elements.
  """
  import grain

  threads = cores() if threads is None else threads
  ahead = grain.ReadOptions(threads, AHEAD * threads)
  elements = dataset.to_iter_dataset(ahead)
  if batch:
    elements = grain.experimental.RebatchIterDataset(elements, batch)
  with contextlib.closing(iter(elements)) as iterator:
    yield from iterator


def in_processes(dataset: Any, workers: int) -> Iterator[dict[str, np.ndarray]]:
  """Yields the elements of a Grain data set in order, read by processes.

  Raises:
    UserError: If a worker is killed or ends by itself.
  """
  from absl import flags
  import grain

  if not flags.FLAGS.is_parsed():  # Grain reads a flag.
    flags.FLAGS.mark_as_parsed()
  iterator = iter(
      dataset.to_iter_dataset(grain.ReadOptions(0, 0)).mp_prefetch(
          grain.MultiprocessingOptions(workers, per_worker_buffer_size=AHEAD),
          worker_init_fn=_begin_worker,
      )
  )
  try:
    for result in iterator:
      # Copied, because the shared memory is freed with the workers.
      yield {name: np.array(array) for name, array in result.items()}
  except RuntimeError as error:
    if 'terminated unexpectedly' not in str(error):  # Grain's words
      raise
    raise UserError(
        'a worker that decodes images ended: see what it printed above. If '
        'nothing, memory or /dev/shm is full: free or enlarge it, or lower '
        'config.data.workers or config.batch_size. A script that trains must '
        "do so under `if __name__ == '__main__':`, since workers import it"
    ) from error
  finally:
    with contextlib.suppress(AssertionError):  # of one that never started
      iterator.close()
    del iterator  # A reference cycle holds the last shared memory.
    gc.collect()


def _begin_worker(*_: int) -> None:
  """Ignores Ctrl-C, and exits when the parent does, even if it is killed."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)

  def follow():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=follow, daemon=True).start()
