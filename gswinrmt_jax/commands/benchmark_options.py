"""What `gswinrmt benchmark` can be asked for."""

import argparse

from gswinrmt_jax.commands import arguments
from gswinrmt_jax.errors import UserError

TASKS = ('train', 'inference', 'latency')
_SCALED = ('batch', 'resolution', 'depth')
FED_FROM = ('device', 'disk', 'decode')
PICTURES = 2048
# What --pipeline is not measured with.
_OTHERS = (
    *TASKS,
    'run',
    'peers',
    'scaling',
    'depthwise',
    'start',
    'compiled_for',
    'augmented',
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add('--model', nargs='+', default=['retention_compact'], metavar='NAME')
  add('--batch', type=int, default=128, metavar='N', help='images in a step')
  add(
      '--image-size',
      type=int,
      metavar='N',
      help='N x N pixels (default: as in the paper of each model)',
  )
  add(
      '--classes',
      type=int,
      metavar='N',
      help='number of logits (default: likewise)',
  )
  add('--json', metavar='FILE', help='default: benchmarks/results/...')
  _add_measuring(parser)
  _add_pipeline(parser)
  counted = parser.add_argument_group('counting')
  add = counted.add_argument
  add('--compiled-for', choices=('h200',), help='which GPU')
  add(
      '--augmented',
      action='store_true',
      help="count the step with CIFAR-10's augmentation inside",
  )


def _add_measuring(parser):
  measured = parser.add_argument_group('measuring')
  add = measured.add_argument
  add('--train', action='store_true', help='the training step')
  add('--inference', action='store_true', help='logits (default: both)')
  add('--latency', action='store_true', help='logits of one image, waited for')
  add(
      '--run',
      nargs='+',
      metavar='DIR',
      help='with --latency: the models of runs, in turn with each other; '
      'writes their latency.json',
  )
  add(
      '--dtype',
      choices=('float32', 'bfloat16'),
      help='default: bfloat16, on a CPU float32',
  )
  add('--threads', type=int, metavar='N', help='cores of each process')
  add('--peers', nargs='+', default=[], metavar='PEER', help='see above')
  add('--scaling', choices=_SCALED, help='how time grows; draws it as well')
  add(
      '--depthwise',
      action='store_true',
      help='depthwise convolutions alone, in both forms',
  )
  add('--start', action='store_true', help='imports, and a first step')
  add('--repeats', type=int, default=5, metavar='N', help='rounds (default: 5)')
  add(
      '--seconds',
      type=float,
      default=3.0,
      metavar='S',
      help='of each program in a round, and to warm it up (default: 3)',
  )


def _add_pipeline(parser):
  fed = parser.add_argument_group('measuring the pipeline')
  add = fed.add_argument
  add(
      '--pipeline',
      nargs='*',
      choices=(*FED_FROM, 'memory'),
      metavar='STORAGE',
      help='training with its feed over training without, for each '
      f'config.data.storage (default: {" ".join(FED_FROM)})',
  )
  add(
      '--images',
      type=int,
      metavar='N',
      help=f'pictures that are made up for it (default: {PICTURES:,})',
  )
  add(
      '--workers',
      type=int,
      metavar='N',
      help="processes that decode (default: the recipe's, 0)",
  )


def check(args: argparse.Namespace) -> None:
  """Refuses numbers that are none, and what does not go together.

  Raises:
    UserError: Names the first.
  """
  arguments.check_positive(
      args, 'batch', 'image_size', 'classes', 'threads', 'repeats', 'images'
  )
  if args.seconds <= 0:
    raise UserError('--seconds must be above 0')
  _check_pipeline(args)
  if args.run and not args.latency:
    raise UserError('--run is for --latency')
  if args.run and args.peers:
    raise UserError('--run measures runs in turn with each other, no --peers')


def _check_pipeline(args):
  if args.workers is not None and args.workers < 0:
    raise UserError('--workers must be at least 0')
  if args.pipeline is None:
    for name in ('images', 'workers'):
      if getattr(args, name) is not None:
        raise UserError(f'--{name} is for --pipeline')
    return
  for name in _OTHERS:
    if getattr(args, name):
      option = name.replace('_', '-')
      raise UserError(f'--pipeline is measured by itself, without --{option}')
