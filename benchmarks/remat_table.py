"""Memory of a training step by `config.remat`, batch and image size.

    python benchmarks/remat_table.py --model retention_compact --batches 128
    python benchmarks/remat_table.py --model retention_large --image-sizes 224 \
        --classes 100 --batches 64 128 --compiled-for h200

Counts the temporaries of the compiled program, which exclude state and batch,
for this machine's default device or for an H200 that need not be here
(`gswinrmt_jax/benchmark/compiled.py`). Nothing is run.
"""

import argparse
import itertools
import json
import pathlib

import jax

from gswinrmt_jax.benchmark import compiled, models, programs
from gswinrmt_jax.models import backbone


def compiled_here(spec: programs.worker.Spec) -> jax.stages.Compiled:
  """Returns the step, compiled for the default device."""
  _, step, arguments = programs.training_step(spec)
  return step.lower(*arguments).compile()


def main() -> None:
  """Prints the table; writes JSON if it is told where."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default='retention_compact')
  parser.add_argument('--batches', type=int, nargs='+', default=[128])
  parser.add_argument('--image-sizes', type=int, nargs='+', default=[32])
  parser.add_argument('--remat', nargs='+', default=list(backbone.REMAT))
  parser.add_argument('--classes', type=int, default=10)
  parser.add_argument('--dtype', default='bfloat16')
  parser.add_argument('--compiled-for', choices=['h200'])
  parser.add_argument('--json', type=pathlib.Path)
  options = parser.parse_args()
  device = options.compiled_for or jax.devices()[0].device_kind
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
    if options.compiled_for:
      program = compiled.compile_step(spec, options.compiled_for)
    else:
      program = compiled_here(spec)
    bytes_ = program.memory_analysis().temp_size_in_bytes
    row = {'image_size': size, 'batch': batch, 'remat': remat}
    rows.append({**row, 'temporaries': bytes_})
    line = f'{size} px, batch {batch}, {remat}: {bytes_ / 1e9:.3f} GB'
    print(line, flush=True)
  if options.json:
    table = {'model': options.model, 'dtype': options.dtype, 'device': device}
    table |= {'jax': jax.__version__, 'rows': rows}
    options.json.write_text(json.dumps(table, indent=2) + '\n')


if __name__ == '__main__':
  main()
