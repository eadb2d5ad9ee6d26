"""Compares a training step with Muon to one with AdamW, in one process.

  python benchmarks/muon_step.py --json benchmarks/results/cpu_muon.json

The model is that of `configs/cifar10_small.py`, in float32, without
augmentation and without an EMA. The two programs take turns, and a ratio is
that of two neighbouring measurements. Images are random. Needs idle cores.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import time

import jax

from gswinrmt_jax import files, recipes
from gswinrmt_jax.benchmark import programs
from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.train import learning_rate, optimizer, train_state, train_step

_RECIPE = pathlib.Path(__file__).parents[1] / 'configs' / 'cifar10_small.py'
_CLASSES, _SIDE = 10, 32


def training(name: str, batch_size: int) -> programs.Training:
  """Returns the training with an optimizer; a call makes so many steps."""
  config = recipe_files.load(
      str(_RECIPE),
      [f'--config.optimizer.name={name}', '--config.dtype=float32'],
  )
  shape = (_SIDE, _SIDE, 3)
  model = recipes.make_model(recipes.resolve(config), _CLASSES, shape)
  rate = learning_rate.warmup_cosine(
      1e-3, warmup_steps=1000, total_steps=10_000
  )
  tx = optimizer.from_config(config.optimizer, rate)
  step = jax.jit(
      train_step.make_train_step(model, tx, lambda key, batch, step: batch),
      donate_argnums=0,
  )
  key = jax.random.key(0)
  state = train_state.create(model, tx, key, shape)
  label = jax.random.randint(key, (batch_size,), 0, _CLASSES)
  batch = (
      jax.random.normal(key, (batch_size, *shape)),
      jax.nn.one_hot(label, _CLASSES),
  )
  return programs.Training(step, state, itertools.repeat(batch), key)


def main() -> None:
  """Prints the milliseconds of both steps and their ratio."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--batch', type=int, default=128)
  parser.add_argument('--steps', type=int, default=5, help='in each round')
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--json', type=pathlib.Path)
  args = parser.parse_args()
  runs = {name: training(name, args.batch) for name in ('adamw', 'muon')}
  for train in runs.values():
    train(2)  # Compiles.
  times = {name: [] for name in runs}
  for _ in range(args.rounds):
    for name, train in runs.items():
      began = time.perf_counter()
      train(args.steps)
      times[name].append(1e3 * (time.perf_counter() - began) / args.steps)
  ratios = sorted(
      muon / adamw
      for adamw, muon in zip(times['adamw'], times['muon'], strict=True)
  )
  record = {
      'recipe': _RECIPE.stem,
      'batch': args.batch,
      'device': jax.devices()[0].device_kind,
      'cpu_count': os.cpu_count(),
      'jax': jax.__version__,
      'milliseconds': {
          name: statistics.median(each) for name, each in times.items()
      },
      'rounds_ms': times,
      'ratio': statistics.median(ratios),
  }
  for name, value in record['milliseconds'].items():
    print(f'{name:<6} {value:7.0f} ms')
  print(
      f'Muon / AdamW: {record["ratio"]:.3f}, from {ratios[0]:.3f} to '
      f'{ratios[-1]:.3f}'
  )
  if args.json:
    files.write_json(args.json, record)


if __name__ == '__main__':
  main()
