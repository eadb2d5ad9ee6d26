"""`gswinrmt prepare`: downloads a data set, or takes a local copy."""

import argparse

DESCRIPTION = """\
Writes a data set in the form that training and TensorFlow Datasets (TFDS)
read. Training does the same by itself when the data are missing; this command
is for doing it beforehand, from a local copy, or into another directory.
"""

EXAMPLES = """\
examples:
  gswinrmt prepare cifar10                       download (170 MB)
  gswinrmt prepare cifar10 --archive cifar-10-binary.tar.gz
  gswinrmt prepare cifar10 --dir /data/tfds      then train.py with
                                                 --config.data.dir=/data/tfds
  gswinrmt prepare digits                        ships with the package
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Describes the command to `parser`."""
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.description = DESCRIPTION
  parser.epilog = EXAMPLES
  parser.add_argument(
      'dataset', metavar='DATASET', help='cifar10, or digits (always there)'
  )
  parser.add_argument(
      '--archive',
      metavar='FILE',
      help='local cifar-10-binary.tar.gz or cifar-10-python.tar.gz to read '
      'instead of downloading',
  )
  parser.add_argument(
      '--dir',
      default='',
      metavar='DIR',
      help='TFDS data directory to write into; default: $TFDS_DATA_DIR, or '
      '~/tensorflow_datasets',
  )


def run(args: argparse.Namespace) -> int:
  """Prepares the data set; returns 0, or raises `UserError`."""
  from gswinrmt_jax.data import datasets

  datasets.prepare(args.dataset, args.dir, args.archive)
  return 0
