"""Threads and worker processes that read ahead, and their progress bar."""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from typing import Any, TypeVar

import numpy as np

from gswinrmt_jax.errors import UserError

AHEAD = 2  # results that each thread or worker prefetches
_T = TypeVar('_T')


def cores() -> int:
  """Returns how many cores this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def with_bar(
    items: Iterable[_T], title: str, count: int, unit: str = 'img', **how: Any
) -> Iterable[_T]:
  """Wraps items in a progress bar of tqdm if there is a terminal."""
  import tqdm

  return tqdm.tqdm(items, title, count, unit=unit, disable=None, **how)


def read_ahead(threads: int | None = None) -> Any:
  """Returns Grain's options for reading ahead in threads.

  The default is one thread per core: Pillow releases the GIL while decoding.
  With 0, nothing is read ahead.
  """
  import grain  # Takes a second, which --help need not wait for.

  threads = cores() if threads is None else threads
  return grain.ReadOptions(threads, AHEAD * threads)


def in_threads(
    read: Callable[[int], _T], count: int, threads: int | None = None
) -> Iterator[_T]:
  """Yields `read(0)` to `read(count - 1)` in order, computed in threads.

  The number of threads is as in `read_ahead`.
  """
  import grain

  dataset = grain.MapDataset.range(count).map(read)
  iterator = iter(dataset.to_iter_dataset(read_ahead(threads)))
  with contextlib.closing(iterator):
    yield from iterator


def in_processes(dataset: Any, workers: int) -> Iterator[dict[str, np.ndarray]]:
  """Yields the elements of a Grain data set in order, read by processes.

  Raises:
    UserError: If a worker is killed.
  """
  from absl import flags
  import grain

  if not flags.FLAGS.is_parsed():  # Grain reads a flag.
    flags.FLAGS.mark_as_parsed()
  iterator = iter(
      dataset.to_iter_dataset(read_ahead(0)).mp_prefetch(
          grain.MultiprocessingOptions(workers, per_worker_buffer_size=AHEAD),
          worker_init_fn=_begin_worker,
      )
  )
  try:
    for result in iterator:
      # Copied, because the shared memory is freed with the workers.
      yield {name: np.array(array) for name, array in result.items()}
  except RuntimeError as error:
    if 'terminated unexpectedly' not in str(error):  # Grain's message.
      raise
    raise UserError(
        'a worker that decodes images was killed, as happens when memory or '
        '/dev/shm is full: free or enlarge it, or lower config.data.workers '
        'or config.batch_size'
    ) from error
  finally:
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
