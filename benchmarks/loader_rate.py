"""Measures how many training images a host feeds per second, without a model.

    python benchmarks/loader_rate.py --images 50000 --size 32
    python benchmarks/loader_rate.py --images 1000 --size 224 --batch 32 \
      --pictures 500x375 --workers 1 2

Random images are gathered in memory (`config.data.storage='memory'`) and sent
to the device. Results are medians over repeats.

`--pictures` generates JPEG files of that size, prepares them as a data set and
feeds them as the recipe of Mini-ImageNet does: from decoded files ('disk') and
by decoding each time ('decode'), first without and then with workers.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax
import numpy as np
import synthetic_images

from gswinrmt_jax import recipes
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.data import parallel, records
from gswinrmt_jax.distributed import mesh
from gswinrmt_jax.train import data


def _open(images, batch: int) -> Iterator[Any]:
  """Yields batches of these images on the devices, as in a run."""
  devices = mesh.Devices()
  batches = batches_lib.train_batches(images, batch_size=batch, seed=0)
  with contextlib.closing(batches):
    yield from map(devices.put_batch, batches)


def _random(count: int, size: int) -> records.Arrays:
  rng = np.random.default_rng(0)
  return records.Arrays(
      rng.integers(0, 256, (count, size, size, 3), np.uint8),
      rng.integers(0, 10, count, np.int32),
  )


def _load(folder: pathlib.Path, size: int, storage: str, workers: int):
  config = recipes.mini_imagenet('retention_large')
  config.data.name, config.data.dir = synthetic_images.NAME, str(folder)
  config.data.train_split, config.data.image_size = 'train', size
  config.data.storage, config.data.workers = storage, workers
  return data.load_train(config)


def _rate(opened: Iterator[Any], batch: int, count: int) -> tuple[float, float]:
  """Returns images per second of wall time and of this process's CPU time.

  All images reach the device in the form that a step takes.
  """
  before, spent, images = time.perf_counter(), time.process_time(), 0
  while images < count:
    done = next(opened)
    images += batch
  jax.block_until_ready(done)
  taken = time.perf_counter() - before, time.process_time() - spent
  return images / taken[0], images / taken[1]


def _measure(
    feeds: Mapping[str, Callable[[], Iterator[Any]]], options, workers: int = 0
) -> None:
  """Times interleaved feeds, one at a time, and prints the medians.

  A feed ends before the next begins: its threads or workers read ahead.
  """
  rates = {name: [] for name in feeds}
  ahead = parallel.AHEAD * (workers or parallel.cores())
  for repeat in range(options.repeats + 1):
    for name, feed in feeds.items():
      with contextlib.closing(feed()) as opened:
        for _ in range(ahead):  # prefetched before the timing
          next(opened)
        found = _rate(opened, options.batch, options.images)
      if repeat:  # the first warms up
        rates[name].append(found)
  for name, found in rates.items():
    clock, spent = zip(*found, strict=True)
    core = f', {statistics.median(spent):,.0f} a core' if not workers else ''
    print(
        f'{name}: {statistics.median(clock):,.0f} images/s, '
        f'{min(clock):,.0f} to {max(clock):,.0f}{core}',
        flush=True,
    )


def _measure_pictures(folder: pathlib.Path, options) -> None:
  size = options.pictures
  synthetic_images.make(folder, options.images, classes=2, size=size)
  print(f'JPEG files of {size[0]}x{size[1]}')
  _measure(
      {
          storage: functools.partial(
              _open,
              _load(folder, options.size, storage, 0),
              options.batch,
          )
          for storage in ('disk', 'decode')
      },
      options,
  )
  for workers in options.workers:
    loaded = _load(folder, options.size, 'decode', workers)
    name = f'decode, {workers} workers'
    feed = functools.partial(_open, loaded, options.batch)
    _measure({name: feed}, options, workers)


def main() -> None:
  """Prints the medians."""
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--images', type=int, default=50_000)
  parser.add_argument('--size', type=int, default=32)
  parser.add_argument('--batch', type=int, default=128)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument(
      '--pictures', type=synthetic_images.width_height, metavar='WIDTHxHEIGHT'
  )
  parser.add_argument('--workers', type=int, nargs='*', default=[])
  options = parser.parse_args()
  if options.repeats < 1:
    parser.error('--repeats must be at least 1')
  if options.workers and not options.pictures:
    parser.error('--workers needs --pictures: only files are decoded')
  print(f'{options}, {jax.devices()[0].device_kind}')
  images = _random(options.images, options.size)
  _measure({'memory': functools.partial(_open, images, options.batch)}, options)
  if options.pictures:
    with tempfile.TemporaryDirectory() as folder:
      _measure_pictures(pathlib.Path(folder), options)


if __name__ == '__main__':
  main()
