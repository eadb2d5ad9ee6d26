"""Lists the memory of a training step by `config.remat`, batch and image size.

    python benchmarks/remat_table.py --model retention_compact --batches 128

Prints the size of the temporaries of the compiled step on JAX's default device,
without state and batch. The step is not run.
"""

import argparse
import itertools
import json
import pathlib

import jax

from gswinrmt_jax.benchmark import models, programs
from gswinrmt_jax.models import backbone


def temporaries(spec: programs.worker.Spec) -> int:
  """Returns the bytes that the compiled step needs on top of its arguments."""
  _, step, arguments = programs.training_step(spec)
  compiled = step.lower(*arguments).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def main() -> None:
  """Prints the table; with --json, also writes it."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default='retention_compact')
  parser.add_argument('--batches', type=int, nargs='+', default=[128])
  parser.add_argument('--image-sizes', type=int, nargs='+', default=[32])
  parser.add_argument('--remat', nargs='+', default=list(backbone.REMAT))
  parser.add_argument('--classes', type=int, default=10)
  parser.add_argument('--dtype', default='bfloat16')
  parser.add_argument('--json', type=pathlib.Path)
  options = parser.parse_args()
  device = jax.devices()[0].device_kind
  print(f'{options.model}, {options.dtype}, {device}, JAX {jax.__version__}')
  rows = []
  for size, batch, remat in itertools.product(
      options.image_sizes, options.batches, options.remat
  ):
    spec = models.spec(
        options.model,
        'train',
        batch=batch,
        image_size=size,
        classes=options.classes,
    )
    spec |= {'dtype': options.dtype, 'remat': remat}
    size_in_bytes = temporaries(spec)
    row = {'image_size': size, 'batch': batch, 'remat': remat}
    rows.append({**row, 'temporaries': size_in_bytes})
    line = f'{size} px, batch {batch}, {remat}: {size_in_bytes / 1e9:.3f} GB'
    print(line, flush=True)
  if options.json:
    table = {'model': options.model, 'dtype': options.dtype, 'device': device}
    table |= {'jax': jax.__version__, 'rows': rows}
    options.json.write_text(json.dumps(table, indent=2) + '\n')


if __name__ == '__main__':
  main()
