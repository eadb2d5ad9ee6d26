"""Arguments that several commands take.

Commands import JAX only when they run, so that --help does not wait for it.
"""

import argparse
from collections.abc import Sequence
import os
import pathlib
from typing import Any

from gswinrmt_jax.commands import guard
from gswinrmt_jax.errors import did_you_mean, UserError

_HUB = 'hf-hub:'  # `weights.hub.PREFIX`, which this must not import
_OVERRIDES = ('--config.', '--noconfig.', '-config.', '-noconfig.')


def path(text: str) -> str:
  """Returns a path that a user gave, `~` expanded and without a `/` at its end.

  Raises:
    UserError: If it is the address of another machine.
  """
  if text.startswith(_HUB):
    raise UserError(
        f'{text} is a repository of the Hugging Face Hub: name a file or '
        'folder of this machine (`gswinrmt push` uploads a run)'
    )
  return weights(text)


def weights(text: str) -> str:
  """Returns what a user gave as weights: as `path`, or `hf-hub:OWNER/NAME`."""
  if not text:  # It would name the current folder.
    raise UserError('a path is empty: is a shell variable not set?')
  if '://' in text:
    raise UserError(
        f'{text} is an address: name a file or folder of this machine (weights '
        f'can also be {_HUB}OWNER/NAME)'
    )
  try:
    return os.path.expanduser(text).rstrip('/') or '/'
  except ValueError:  # a null byte; refused where the path is used
    return text


def add_weights(parser: argparse.ArgumentParser, many: bool = False) -> None:
  """Declares RUN_OR_WEIGHTS, one or a list, --step and --weights."""
  parser.add_argument(
      'weights',
      type=weights,
      nargs='+' if many else None,
      metavar='RUN_OR_WEIGHTS',
      help='run folder runs/NAME, folder made by `convert` or `export`, '
      '.safetensors or .pth file, name of weights that ship with the package, '
      'or hf-hub:OWNER/NAME',
  )
  add_checkpoint(parser)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
  """Declares --step and --weights, which choose the weights of a run."""
  parser.add_argument(
      '--step',
      type=_step,
      default='best',
      metavar='best|latest|N',
      help='checkpoint of a run: best on validation data (default), latest, or '
      'a step number',
  )
  parser.add_argument(
      '--weights',
      dest='which',
      choices=('raw', 'ema'),
      help='for a run with a moving average of its weights (EMA): the raw '
      'weights or the average (default: the better on validation data)',
  )


def add_data(parser: argparse.ArgumentParser, split: str) -> None:
  """Declares --data, --split, which has a default, and --data-dir."""
  add = parser.add_argument
  instead = ', or val without a test split' if split == 'test' else ''
  add(
      '--data',
      type=path,
      metavar='NAME',
      help="data set (default: the run's own, or the one that the weights "
      'name)',
  )
  add(
      '--split',
      default=split,
      help="'train', 'val', 'test' as in the run's config, or a split of the "
      f"data set, such as 'test[:1000]', or 'all' (default: {split}{instead})",
  )
  add(
      '--data-dir',
      type=path,
      metavar='DIR',
      help="folder of the data sets (default: the run's own)",
  )


def add_about(parser: argparse.ArgumentParser) -> None:
  """Declares --license and --note, for the model card."""
  add = parser.add_argument
  add(
      '--license',
      default='',
      metavar='NAME',
      help='licence of the weights for the model card, such as apache-2.0',
  )
  add(
      '--note',
      default='',
      metavar='TEXT',
      help='what the model card says about data and training',
  )


def _step(text):
  if text in ('best', 'latest'):
    return text
  if not text.isdecimal():
    near = did_you_mean(text, ('best', 'latest'))
    raise UserError(
        f"--step is '{text}': must be best, latest or a step number{near}"
    )
  return int(text)


def load_weights(args: argparse.Namespace) -> Any:
  """Returns the `weights.load.Weights` that the arguments name."""
  from gswinrmt_jax.weights import load

  return load.load(
      pathlib.Path(args.weights),
      step=args.step,
      which=args.which,
      warn=guard.complain,
  )


def add_number(parser: argparse.ArgumentParser, name: str, **how: Any) -> None:
  """Declares an option that is a whole number, 1 or more."""

  def number(text):
    try:
      value = int(text)
    except ValueError:
      value = 0
    if value < 1:
      raise UserError(f"{name} is '{text}': must be a whole number, at least 1")
    return value

  parser.add_argument(name, type=number, metavar='N', **how)


def take_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
  """Splits arguments into overrides of a recipe's fields and all others.

  `--config.FIELD VALUE` becomes `--config.FIELD=VALUE`.
  """
  overrides, others = [], []
  rest = list(argv)
  while rest:
    argument = rest.pop(0)
    if not argument.startswith(_OVERRIDES):
      others.append(argument)
    elif (
        '=' in argument
        or argument.lstrip('-').startswith('no')  # sets a flag to False
        or not rest
        or rest[0].startswith('--')
    ):
      overrides.append(argument)
    else:
      overrides.append(f'{argument}={rest.pop(0)}')
  return overrides, others
