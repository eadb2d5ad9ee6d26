"""Evaluates a checkpoint of a run, or weights.

Prints the figures as a table and writes them, with the confusion matrix, to
RUN/evaluation_SPLIT_STEP.json. Every image of the split counts once.
"""

import argparse
import pathlib

from gswinrmt_jax.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  parser.add_argument(
      'run',
      metavar='RUN_OR_WEIGHTS',
      help='run folder runs/NAME, folder of `convert`, .safetensors or .pth',
  )
  parser.add_argument(
      '--data',
      metavar='NAME',
      help="data set (default: the run's own; weights alone have none)",
  )
  parser.add_argument(
      '--step',
      default='best',
      metavar='best|latest|N',
      help='checkpoint: best on validation data (default), latest, or a step',
  )
  parser.add_argument(
      '--split',
      default='test',
      help="'train', 'val', 'test' as in the run's config (default: test), or "
      "a split of the data set, such as 'test[:1000]'",
  )
  parser.add_argument(
      '--image-size',
      type=int,
      metavar='N',
      help='resize to N x N (bilinear, antialiased; default: as they are)',
  )
  parser.add_argument(
      '--batch-size', type=int, metavar='N', help="default: the run's own"
  )
  parser.add_argument(
      '--data-dir', metavar='DIR', help="default: the run's own"
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  if args.step not in ('best', 'latest') and not args.step.isdecimal():
    raise UserError(f"--step is best, latest or a number, not '{args.step}'")
  for name in ('image_size', 'batch_size'):
    value = getattr(args, name)
    if value is not None and value < 1:
      raise UserError(f'--{name.replace("_", "-")} must be at least 1')

  # Imported here: --help need not wait for JAX.
  from gswinrmt_jax.training import evaluate_run

  evaluate_run.evaluate_run(
      pathlib.Path(args.run),
      data=args.data,
      step=args.step if not args.step.isdecimal() else int(args.step),
      split=args.split,
      image_size=args.image_size,
      batch_size=args.batch_size,
      data_dir=args.data_dir,
  )
