"""Compares runs with each other and with the results of the paper.

Writes report.md, with tables and plots, into a folder: accuracy of classifiers,
mean IoU of segmenters. DIR is a run folder, a folder of run folders (such as
OUT/NAME of `experiment`), or a folder of JSON files written by
results/collect.py. Runs need not be complete: the report lists what is missing.
"""

import argparse
import pathlib


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add('dirs', metavar='DIR', nargs='+', help='folders with runs')
  add(
      '--out',
      default='report',
      metavar='DIR',
      help='folder to write into (default: report)',
  )


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  from gswinrmt_jax.experiments import report

  folders = [pathlib.Path(name) for name in args.dirs]
  print(report.write(folders, pathlib.Path(args.out)))
