"""The console command `gswinrmt`."""

import argparse
from collections.abc import Sequence
import difflib
import importlib
import sys
from typing import NoReturn

from gswinrmt_jax.commands import arguments, guard
from gswinrmt_jax.errors import UserError

# Name -> what it does. Each is a module here with `add_arguments(parser)` and
# `run(args)`, imported when it is called; `train` parses its own arguments.
_COMMANDS = {
    'train': 'train a model by a recipe',
    'prepare': 'prepare a data set: a download, or images of your own',
    'evaluate': 'evaluate a checkpoint of a run, or weights',
    'predict': 'predict the classes of images',
    'summarize': 'list models with parameters and multiply-accumulates',
    'benchmark': 'measure speed, or count what a step does on a GPU',
    'convert': 'convert weights of the released PyTorch RMT',
    'export': 'export a model to a format for other software',
    'push': 'upload the weights of a run to the Hugging Face Hub',
    'label-maps': 'make label maps, with a token-label model as teacher',
    'experiment': 'train a named set of runs, such as a table of the paper',
    'report': 'compare runs with the figures of the paper',
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a sub-command.

  Args:
    argv: Arguments, without the program's name; None takes the process's.

  Returns:
    The exit status, by `guard.guarded`.
  """
  argv = list(sys.argv[1:] if argv is None else argv)
  name = argv[0] if argv else ''
  if name in ('', '-h', '--help'):
    lines = [f'  {key:<12}{text}' for key, text in _COMMANDS.items()]
    usage = 'usage: gswinrmt COMMAND ...   (gswinrmt COMMAND --help)'
    print('\n'.join([usage, '', *lines]))
    return 0 if name else 2
  if name not in _COMMANDS:
    near = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f'did you mean {near[0]}?' if near else f'try {", ".join(_COMMANDS)}'
    return guard.complain(f"no command '{name}': {hint}")
  file = name.replace('-', '_')
  module = importlib.import_module(f'gswinrmt_jax.commands.{file}')
  if name == 'train':
    return module.main(argv[1:], program='gswinrmt train')
  parser = _Parser(
      prog=f'gswinrmt {name}',
      description=module.__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  module.add_arguments(parser)
  return guard.guarded(lambda: module.run(_parse(parser, argv[1:])))


def console() -> NoReturn:
  """Runs `main` and ends the process with its status."""
  guard.exits(main)


def _parse(parser, argv):
  """Parses; a command that has `overrides` takes --config.FIELD=VALUE."""
  if parser.get_default('overrides') is None:
    return parser.parse_intermixed_args(argv)
  overrides, argv = arguments.take_overrides(argv)
  args = parser.parse_intermixed_args(argv)
  args.overrides = overrides
  return args


class _Parser(argparse.ArgumentParser):
  """Reports mistakes as `UserError`, in one line."""

  def error(self, message):
    raise UserError(f'{message} ({self.prog} --help)')


if __name__ == '__main__':
  console()
