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
# `run(args)`, imported only when called for; `train` reads its own arguments.
_COMMANDS = {
    'train': 'train a model as a recipe says',
    'prepare': 'make a data set: a download, or pictures of your own',
    'evaluate': 'evaluate a checkpoint of a run, or weights',
    'predict': 'name what pictures show',
    'summarize': 'list models with parameters and multiply-accumulates',
    'benchmark': 'count what a training step does, compiled for a GPU',
    'convert': 'take over weights of the released PyTorch RMT',
    'export': 'write a model in a form that others read',
    'label-maps': 'make label maps, with a token-label model as teacher',
    'experiment': 'train a named set of runs, such as a table of the paper',
    'report': 'put runs beside the figures of the paper',
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a sub-command.

  Args:
    argv: Arguments, without the program's name; None takes the process's.

  Returns:
    The exit status: 0, or as `guard` says after a line on what is wrong.
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
  """Is the console command: `main`, and the end of the process."""
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
  """Complains in one line, as everything else here does."""

  def error(self, message):
    raise UserError(f'{message} ({self.prog} --help)')


if __name__ == '__main__':
  console()
