"""Times a training step on a CPU with three ways of allocating memory.

  python benchmarks/allocators.py --json benchmarks/results/cpu_allocators.json

XLA's CPU backend allocates and frees temporaries in every step. Some allocators
return this memory to the system, which clears its pages again in the next step.
The variants are interleaved, each in processes of its own: 'glibc' with its
defaults, 'glibc, kept' with the settings of `run_on_cpu.sh`, and 'jemalloc'
(Debian and Ubuntu: libjemalloc2), which keeps all memory. Needs idle cores.
"""

import argparse
import ctypes.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from gswinrmt_jax import files

_KEPT = {
    'MALLOC_MMAP_MAX_': '0',
    'MALLOC_TRIM_THRESHOLD_': '2147483647',
    'JAX_CPU_ENABLE_ASYNC_DISPATCH': 'false',
}


def variants() -> dict[str, dict[str, str]]:
  """Returns the environment variables of each variant."""
  library = ctypes.util.find_library('jemalloc')
  if library is None:
    sys.exit('jemalloc is not installed (Debian and Ubuntu: libjemalloc2)')
  return {
      'glibc': {},
      'glibc, kept': _KEPT,
      'jemalloc': {
          'LD_PRELOAD': library,
          'MALLOC_CONF': 'dirty_decay_ms:-1,muzzy_decay_ms:-1',
      },
  }


def measure(variables: dict[str, str], options: list[str]) -> dict:
  """Returns the record of `gswinrmt benchmark` under these variables."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'step.json'
    command = [sys.executable, '-m', 'gswinrmt_jax', 'benchmark', '--train']
    command += [*options, '--repeats=1', f'--json={path}']
    subprocess.run(
        command,
        env={**_clean_environment(), **variables},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return json.loads(path.read_text())


def _clean_environment() -> dict[str, str]:
  """Returns the environment without what a user may have set as in the docs."""
  names = {'LD_PRELOAD', 'JAX_CPU_ENABLE_ASYNC_DISPATCH'}
  return {
      name: value
      for name, value in os.environ.items()
      if name not in names and not name.startswith('MALLOC_')
  }


def main() -> None:
  """Prints the median of each variant and its speed relative to glibc's."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', default='retention_compact')
  parser.add_argument('--batch', type=int, default=128)
  parser.add_argument('--image-size', type=int, default=32)
  parser.add_argument('--threads', type=int, default=2)
  parser.add_argument('--rounds', type=int, default=3)
  parser.add_argument('--json', type=pathlib.Path)
  args = parser.parse_args()
  options = [
      f'--model={args.model}',
      f'--batch={args.batch}',
      f'--image-size={args.image_size}',
      f'--threads={args.threads}',
  ]
  compared = variants()
  times: dict[str, list[float]] = {name: [] for name in compared}
  for _ in range(args.rounds):
    for name, variables in compared.items():
      record = measure(variables, options)
      (row,) = record['groups'][0]['rows']
      times[name].append(row['milliseconds'])
  first = times['glibc']
  rows = [
      {
          'allocator': name,
          'variables': variables,
          'milliseconds': statistics.median(times[name]),
          'rounds_ms': times[name],
          'relative': statistics.median(
              old / new for old, new in zip(first, times[name], strict=True)
          ),
      }
      for name, variables in compared.items()
  ]
  for row in rows:
    print(
        f'{row["allocator"]:<12} {row["milliseconds"]:7.0f} ms '
        f'{row["relative"]:6.2f}x'
    )
  if args.json:
    machine = record['machine'] | {'command': ' '.join(sys.argv)}
    del machine['environment']  # differs by row
    files.write_json(args.json, {'machine': machine, 'rows': rows})


if __name__ == '__main__':
  main()
