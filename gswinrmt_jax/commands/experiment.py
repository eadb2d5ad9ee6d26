"""Trains a named set of runs, one after another.

  table5            CIFAR-10, the three compact models (Tables 5 and 6)
  table3            Mini-ImageNet, the three large models (Tables 3 and 4)
  table3-small      the same at 64x64, tiny models, four epochs: for a laptop
  ablation-cifar10  one component changed at a time, on CIFAR-10
  ablation-mini     the same on Mini-ImageNet
  smoke             tiny models on the digits, to check that everything runs

Runs go to OUT/NAME/RUN_sSEED. The same command skips complete runs and resumes
the others. If a run fails, the others still run, and the exit status is 1.
--config.FIELD=VALUE changes a field of every run.
"""

import argparse
import pathlib
import sys

from gswinrmt_jax.commands import arguments, recipe_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  parser.set_defaults(overrides=[])  # takes --config.FIELD=VALUE
  add = parser.add_argument
  add('name', metavar='NAME', help='name of the set')
  arguments.add_number(
      parser,
      '--seeds',
      default=3,
      help='runs of each configuration, with seeds 0 to N - 1 (default: 3)',
  )
  add(
      '--only',
      default='*',
      metavar='NAMES',
      help="runs of the set, such as 'retention,retention_no_*' (default: all)",
  )
  add('--out', default='runs', metavar='DIR', help='default: runs')
  add(
      '--status',
      action='store_true',
      help='print how far the runs are, and train nothing',
  )


def run(args: argparse.Namespace) -> int:
  """Runs the command; returns 1 if a run failed."""
  from gswinrmt_jax.experiments import run as run_lib
  from gswinrmt_jax.experiments import sets

  jobs = sets.jobs(
      args.name,
      pathlib.Path(args.out),
      seeds=args.seeds,
      overrides=args.overrides,
      only=args.only,
      load=recipe_files.load,
  )
  if args.status:
    print(run_lib.status_table(jobs))
    return 0
  program = [sys.executable, '-m', 'gswinrmt_jax.commands.main', 'train']
  failed = run_lib.run(jobs, program, lambda line: print(line, flush=True))
  print(run_lib.status_table(jobs))
  for job in failed:
    print(f'failed: {job.folder}', file=sys.stderr)
  print(f'gswinrmt report {pathlib.Path(args.out) / args.name}')
  return 1 if failed else 0
