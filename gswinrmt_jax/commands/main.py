"""The console command `gswinrmt`."""

import argparse
from collections.abc import Sequence
import importlib
import sys
from typing import NoReturn

import gswinrmt_jax
from gswinrmt_jax import allocator
from gswinrmt_jax.commands import guard
from gswinrmt_jax.errors import did_you_mean, UserError

# Name -> description, by group. Each command is a module of this package with
# `add_arguments(parser)` and `run(args)`, imported when it is called. `train`
# parses its own arguments.
_GROUPS = {
    'data and training': {
        'prepare': 'prepare your images, ImageNet or CIFAR-10',
        'train': 'train a model from a recipe, or resume a run',
    },
    'trained models': {
        'evaluate': 'evaluate a run or other weights on a data set',
        'predict': 'predict classes, pixels or objects, and draw maps',
        'convert': 'convert weights of the released PyTorch RMT',
        'export': 'write safetensors, PyTorch, StableHLO or ONNX files',
        'push': 'upload the weights of a run to the Hugging Face Hub',
    },
    'studies': {
        'analyze': 'measure what attention and gates of trained models do',
        'summarize': 'list models with parameters and multiply-accumulates',
    },
}
_COMMANDS = {
    name: text for group in _GROUPS.values() for name, text in group.items()
}
# Commands that run a model.
_COMPUTING = ('train', 'evaluate', 'predict', 'analyze', 'export')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a sub-command and returns the exit status, see `guard.reported`.

  Args:
    argv: Arguments, without the program's name; None takes the process's.
  """
  argv = list(sys.argv[1:] if argv is None else argv)
  name = argv[0] if argv else ''
  if name in ('', '-h', '--help', 'help'):
    print(_usage())
    return 0 if name else 2
  if name in ('-V', '--version'):
    print(f'gswinrmt_jax {gswinrmt_jax.__version__}')
    return 0
  if name not in _COMMANDS:
    near = did_you_mean(name, _COMMANDS)
    return guard.complain(
        f"no command '{name}'{near or '; there are ' + ', '.join(_COMMANDS)}"
    )
  module = importlib.import_module(f'gswinrmt_jax.commands.{name}')
  if name == 'train':
    return module.main(argv[1:], program='gswinrmt train')
  parser = _Parser(
      prog=f'gswinrmt {name}',
      description=module.__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  module.add_arguments(parser)
  return guard.guarded(
      lambda: module.run(parser.parse_intermixed_args(argv[1:]))
  )


def console() -> NoReturn:
  """Runs `main` and ends the process with its status."""
  if sys.argv[1:2] and sys.argv[1] in _COMPUTING:
    allocator.restart()
  guard.exits(main)


def _usage():
  lines = ['usage: gswinrmt COMMAND ...', '']
  for title, group in _GROUPS.items():
    lines.append(f'{title}:')
    lines += [f'  {name:<12}{text}' for name, text in group.items()]
    lines.append('')
  lines += [
      'gswinrmt COMMAND --help   explains a command',
      'gswinrmt --version        prints the version',
      '',
      'first steps, on data that comes with the package:',
      '  gswinrmt train --config=digits_retention',
      '  gswinrmt evaluate runs/digits_retention',
  ]
  return '\n'.join(lines)


class _Parser(argparse.ArgumentParser):
  """Reports mistakes as a `UserError` of one line."""

  def error(self, message):
    _, _, unknown = message.partition('unrecognized arguments: ')
    first = unknown.partition(' ')[0].partition('=')[0]
    near = did_you_mean(first, self._option_string_actions)
    raise UserError(f'{message}{near} ({self.prog} --help)')


if __name__ == '__main__':
  console()
