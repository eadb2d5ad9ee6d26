"""Evaluates a checkpoint of a run, or weights.

Prints the figures as a table and writes them, with the confusion matrix, to
RUN/evaluation_SPLIT_STEP.json (STEP_ema for the moving average). Every image of
the split counts once.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  add = parser.add_argument
  add(
      '--data',
      metavar='NAME',
      help="data set (default: the run's own; required for weights alone)",
  )
  add(
      '--split',
      default='test',
      help="'train', 'val', 'test' as in the run's config (default: test), or "
      "a split of the data set, such as 'test[:1000]'",
  )
  arguments.add_number(
      parser,
      '--image-size',
      help="resize images to N x N, as `predict` does (default: the model's "
      'size)',
  )
  arguments.add_number(parser, '--batch-size', help="default: the run's own")
  add('--data-dir', metavar='DIR', help="default: the run's own")


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  from gswinrmt_jax.evals import evaluate_run

  evaluate_run.evaluate_run(
      pathlib.Path(args.weights),
      data=args.data,
      step=args.step,
      which=args.which,
      split=args.split,
      image_size=args.image_size,
      batch_size=args.batch_size,
      data_dir=args.data_dir,
  )
