"""Makes label maps of a data set, to train others with token labels.

The teacher is a token-label model of this package; docs/token_labels.md says
how maps of any other teacher are written.
"""

import argparse
import pathlib

from gswinrmt_jax.commands import arguments, guard


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  arguments.add_weights(parser)
  parser.add_argument('folder', metavar='DIR', help='folder to make')
  parser.add_argument('--data', required=True, metavar='NAME', help='data set')
  parser.add_argument(
      '--split',
      default='train',
      help="of the data set, slices included, as the recipe's train_split "
      '(default: train)',
  )
  parser.add_argument(
      '--image-size',
      type=int,
      metavar='N',
      help="bring images to N x N (default: the teacher's own size)",
  )
  parser.add_argument(
      '--data-dir', default='', metavar='DIR', help='TFDS data directory'
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  step = arguments.step(args)
  arguments.check_positive(args, 'image_size')

  # Imported here: --help need not wait for JAX.
  from gswinrmt_jax.deploy import teacher
  from gswinrmt_jax.weights import load

  teacher.write_label_maps(
      load.load(
          pathlib.Path(args.weights),
          step=step,
          which=args.which,
          warn=guard.complain,
      ),
      pathlib.Path(args.folder),
      name=args.data,
      split=args.split,
      data_dir=args.data_dir,
      image_size=args.image_size,
  )
