"""Counts what a training step does on a GPU, without one.

  gswinrmt benchmark --compiled-for h200 --model retention_compact

compiles the training step (forward, backward, AdamW, bfloat16) for that GPU on
any machine and reads its program: kernels that are launched, bytes that they
read and write, the least that could be (docs/performance.md), temporaries.
Nothing is measured. It takes minutes.
"""

import argparse
import json
import pathlib

from gswinrmt_jax.commands import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  parser.add_argument(
      '--compiled-for', choices=('h200',), required=True, help='which GPU'
  )
  parser.add_argument('--model', default='retention_compact', metavar='NAME')
  parser.add_argument(
      '--batch', type=int, default=128, metavar='N', help='images in a step'
  )
  parser.add_argument(
      '--image-size', type=int, default=32, metavar='N', help='N x N pixels'
  )
  parser.add_argument(
      '--classes', type=int, default=10, metavar='N', help='number of logits'
  )
  parser.add_argument(
      '--augmented',
      action='store_true',
      help="count the step with CIFAR-10's augmentation inside",
  )
  parser.add_argument('--json', metavar='FILE', help='write the counts there')


def run(args: argparse.Namespace) -> None:
  """Runs the command."""
  arguments.check_positive(args, 'batch', 'image_size', 'classes')
  _count(args)


def _count(args):
  from gswinrmt_jax import recipes
  from gswinrmt_jax.benchmark import report

  config = recipes.cifar10(args.model)
  config.batch_size = args.batch
  found = report.count_step(
      config,
      image_size=args.image_size,
      num_classes=args.classes,
      augmented=args.augmented,
      target=args.compiled_for,
  )
  print(report.table(found))
  if args.json:
    pathlib.Path(args.json).write_text(json.dumps(found, indent=1) + '\n')
