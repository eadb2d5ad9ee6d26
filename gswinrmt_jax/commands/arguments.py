"""Arguments that several commands take."""

import argparse
from collections.abc import Sequence

from gswinrmt_jax.errors import UserError

_OVERRIDES = ('--config.', '--noconfig.', '-config.', '-noconfig.')


def add_weights(parser: argparse.ArgumentParser) -> None:
  """Declares the weights, the step of a run, and which of its weights."""
  parser.add_argument(
      'weights',
      metavar='RUN_OR_WEIGHTS',
      help='run folder runs/NAME, folder of `convert`, .safetensors, .pth, or '
      'hf-hub:OWNER/NAME',
  )
  parser.add_argument(
      '--step',
      default='best',
      metavar='best|latest|N',
      help='checkpoint of a run: best on validation data (default), latest, or '
      'a step',
  )
  parser.add_argument(
      '--weights',
      dest='which',
      choices=('raw', 'ema'),
      help='of a run that keeps a moving average of its weights (EMA): the '
      'weights or their average (default: the better on validation data)',
  )


def step(args: argparse.Namespace) -> int | str:
  """Returns the step that `add_weights` declared.

  Raises:
    UserError: If it is none.
  """
  if args.step in ('best', 'latest'):
    return args.step
  if not args.step.isdecimal():
    raise UserError(f"--step is best, latest or a number, not '{args.step}'")
  return int(args.step)


def check_positive(args: argparse.Namespace, *names: str) -> None:
  """Checks that numbers, where they are given, are at least 1.

  Raises:
    UserError: Names the first that is not.
  """
  for name in names:
    value = getattr(args, name)
    if value is not None and value < 1:
      raise UserError(f'--{name.replace("_", "-")} must be at least 1')


def take_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
  """Returns the overrides of a recipe's fields, and the other arguments.

  `--config.FIELD VALUE` is taken like `--config.FIELD=VALUE`.
  """
  overrides, others = [], []
  rest = list(argv)
  while rest:
    argument = rest.pop(0)
    if not argument.startswith(_OVERRIDES):
      others.append(argument)
    elif '=' not in argument and rest and not rest[0].startswith('--'):
      overrides.append(f'{argument}={rest.pop(0)}')
    else:
      overrides.append(argument)
  return overrides, others
