"""`gswinrmt train`, which is also `python train.py`."""

from collections.abc import Sequence
import pathlib
import sys

from gswinrmt_jax.commands import arguments, guard, recipe_files
from gswinrmt_jax.errors import UserError

_USAGE = """\
usage: {program} --config=FILE_OR_NAME[:ARGUMENT] [--workdir=DIR]
           [--config.FIELD=VALUE ...]

Trains a model. The same command resumes an interrupted run.

  --config=FILE_OR_NAME[:ARGUMENT]  the recipe: a Python file, or the name of
                                    one of those below
  --config.FIELD=VALUE              changes a field of the recipe
  --workdir=DIR                     run folder (default: runs/NAME)
  --coordinator=HOST:PORT           of several processes that train together,
  --processes=N --process=I         where no launcher says it (docs/scaling.md)
  --help                            this text; with --config, also the
                                    recipe's fields, values and meanings

recipes:
{names}

examples:
  {program} --config=digits_retention
  {program} --config=cifar10_swat --config.batch_size=64"""


_JOINING = ('coordinator', 'processes', 'process')


def main(
    argv: Sequence[str] | None = None, program: str = 'python train.py'
) -> int:
  """Runs the command.

  Args:
    argv: Arguments, without the program's name; None takes the process's.
    program: How the user called it.

  Returns:
    The exit status.
  """
  argv = list(sys.argv[1:] if argv is None else argv)
  again = 'interrupted; the same command resumes from the last checkpoint'
  with guard.reported(again) as outcome:
    options, overrides = _split(argv)
    spec = options.get('config')
    if 'help' in options or not spec:
      _print_help(program, spec, overrides)
      if 'help' not in options:
        raise UserError('--config is missing')
      return 0
    config = recipe_files.load(spec, overrides)
    folder = options.get('workdir') or recipe_files.default_workdir(spec)

    # Imported here: the lines above need no JAX.
    from gswinrmt_jax.distributed import processes
    from gswinrmt_jax.train import train_loop

    processes.start(*(options.get(name, '') for name in _JOINING))
    train_loop.train(config, pathlib.Path(folder))
  return outcome.status


def _print_help(program, spec, overrides):
  from gswinrmt_jax import recipes

  names = '\n'.join(f'  {name}' for name in recipe_files.names())
  print(_USAGE.format(program=program, names=names))
  if spec:
    print(f'\n{recipes.describe(recipe_files.load(spec, overrides))}')


def _split(argv):
  """Splits into `--config` and its like, `--help` and the overrides."""
  overrides, rest = arguments.take_overrides(argv)
  options = {}
  while rest:
    argument = rest.pop(0)
    name, equals, value = argument.partition('=')
    name = name.lstrip('-') if name.startswith('-') else ''
    # `--name value` is taken like `--name=value`.
    has_next = not equals and rest and not rest[0].startswith('--')
    if name in ('help', 'h', 'helpfull'):
      options['help'] = True
    elif name in ('config', 'workdir', *_JOINING):
      value = rest.pop(0) if has_next else value
      if not value:
        raise UserError(f'--{name} needs a value')
      options[name] = value
    else:
      raise UserError(f"unknown argument '{argument}' (--help lists them)")
  return options, overrides
