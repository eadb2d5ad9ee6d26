"""Measures attention and gates of trained models over a data set.

For each stage: the entropy of attention rows in flat and in informative
windows, the sum of sigmoid weights, the gate and the share that it passes, the
reach of the decay in a new model and now, and effective ranks
(docs/analysis.md). Writes analysis_SPLIT_STEP.json and .png for each model into
its run folder, and prints one table of all models.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser, many=True)
  arguments.add_data(parser, split='val')
  arguments.add_number(
      parser,
      '--images',
      default=1000,
      help='images to measure, from the start of the split (default: 1000)',
  )
  parser.add_argument(
      '--out',
      type=arguments.path,
      metavar='DIR',
      help='folder to write into (default: see above)',
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  from gswinrmt_jax.interpret import analysis

  analysis.analyze_runs(
      args.weights,
      step=args.step,
      which=args.which,
      data=args.data,
      split=args.split,
      data_dir=args.data_dir,
      images=args.images,
      out=pathlib.Path(args.out) if args.out else None,
  )
