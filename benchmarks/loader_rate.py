"""How many training images a second the host can feed, without a model.

    python benchmarks/loader_rate.py --images 50000 --size 32

In turn: images gathered on the host and sent, `config.data.storage='memory'`,
and rows sent, of which the device gathers the images, 'device'. Medians of some
repeats, on random images.
"""

import argparse
import statistics
import time
import types

import jax
import ml_collections
import numpy as np

from gswinrmt_jax.data import records
from gswinrmt_jax.training import devices, feed, plan, resident

_EPOCHS = 1_000_000  # more than are asked for


def _open(images: records.Arrays, storage: str, batch: int, steps: int):
  """Returns a feed of these images, `steps` of them a dispatch."""
  config = ml_collections.ConfigDict(
      {
          'seed': 0,
          'batch_size': batch,
          'steps_per_dispatch': steps,
          'data': {'repeats': 1},
      }
  )
  course = plan.Plan(
      num_examples=len(images),
      batch_size=batch,
      num_epochs=_EPOCHS,
      stop_after_epochs=_EPOCHS,
      eval_every_epochs=_EPOCHS,
      log_every_steps=_EPOCHS,
  )
  here = devices.Devices()
  of = types.SimpleNamespace(
      config=config,
      train_data=resident.place(images, storage, here.replicate),
      maps=None,
      devices=here,
      plan=course,
  )
  return feed.Feed(of, 0)


def _rate(opened: feed.Feed, batch: int, count: int) -> float:
  """Returns images a second, all of them on the device as a step has them."""
  whole = jax.jit(lambda supply: supply.batch(0))
  before, images = time.perf_counter(), 0
  while images < count:
    dispatch = next(opened)
    done = [whole(dispatch.supply) for _ in dispatch.steps]
    images += batch * len(done)
  jax.block_until_ready(done)
  return images / (time.perf_counter() - before)


def main() -> None:
  """Prints the medians."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--images', type=int, default=50_000)
  parser.add_argument('--size', type=int, default=32)
  parser.add_argument('--batch', type=int, default=128)
  parser.add_argument('--steps', type=int, default=1)
  parser.add_argument('--repeats', type=int, default=5)
  options = parser.parse_args()
  rng = np.random.default_rng(0)
  shape = (options.images, options.size, options.size, 3)
  images = records.Arrays(
      rng.integers(0, 256, shape, np.uint8),
      rng.integers(0, 10, options.images, np.int32),
  )
  feeds = {
      storage: _open(images, storage, options.batch, options.steps)
      for storage in ('memory', 'device')
  }
  rates = {storage: [] for storage in feeds}
  for repeat in range(options.repeats + 1):
    for storage, opened in feeds.items():
      rate = _rate(opened, options.batch, options.images)
      if repeat:  # the first compiles
        rates[storage].append(rate)
  print(f'{options}, {jax.devices()[0].device_kind}')
  for storage, found in rates.items():
    print(
        f'{storage}: {statistics.median(found):,.0f} images/s, '
        f'{min(found):,.0f} to {max(found):,.0f}'
    )


if __name__ == '__main__':
  main()
