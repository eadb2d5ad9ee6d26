"""Evaluates a checkpoint of a run, or other weights.

Prints a table of the results and writes them, with the confusion matrix if it
is no detector, to a JSON file: RUN/evaluation_SPLIT_STEP.json for a run
(STEP_ema for the moving average), ./evaluation_WEIGHTS_DATA_SPLIT.json for
other weights. Every image of the split counts once.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  arguments.add_data(parser, split='test')
  arguments.add_number(
      parser,
      '--image-size',
      help='resize images to N x N, as `predict` does; of segmenters and '
      "detectors, N bounds the shorter side (default: the model's size)",
  )
  arguments.add_number(
      parser, '--batch-size', help="images at a time (default: the run's own)"
  )
  parser.add_argument(
      '--mirror',
      action='store_true',
      help='also report the mean of the logits over each image and its mirror '
      'image (classifiers)',
  )
  parser.add_argument(
      '--out',
      type=arguments.path,
      metavar='FILE',
      help='JSON file to write (default: see above)',
  )


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
      out=pathlib.Path(args.out) if args.out else None,
      mirror=args.mirror,
  )
