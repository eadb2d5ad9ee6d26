"""Writes label maps of a data set, to train other models with token labels.

The teacher is a token-label model of this package. docs/token_labels.md
explains how to write the maps of any other teacher.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  add = parser.add_argument
  add('folder', type=arguments.path, metavar='DIR', help='folder to create')
  add('--data', required=True, metavar='NAME', help='data set')
  add(
      '--split',
      default='auto',
      help='split or slice of the data set, as config.data.train_split '
      "(default: auto, the data set's own)",
  )
  arguments.add_number(
      parser,
      '--image-size',
      help="resize images to N x N (default: the teacher's size)",
  )
  add(
      '--data-dir',
      type=arguments.path,
      metavar='DIR',
      help='TFDS data directory',
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  from gswinrmt_jax.deploy import teacher

  teacher.write_token_labels(
      arguments.load_weights(args),
      pathlib.Path(args.folder),
      name=args.data,
      split=args.split,
      data_dir=args.data_dir or '',
      image_size=args.image_size,
  )
