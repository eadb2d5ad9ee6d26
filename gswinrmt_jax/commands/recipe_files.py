"""From `--config=FILE_OR_NAME[:ARGUMENT] --config.FIELD=VALUE` to a recipe."""

from collections.abc import Sequence
import difflib
import pathlib
import re

import ml_collections

from gswinrmt_jax.errors import UserError

_PACKAGE = pathlib.Path(__file__).parent.parent


def folder() -> pathlib.Path:
  """Returns where the recipes are: in the package, or beside it in a clone."""
  inside = _PACKAGE / 'configs'
  return inside if inside.is_dir() else _PACKAGE.parent / 'configs'


def names() -> list[str]:
  """Returns the names of the recipes that come with the project."""
  return sorted(
      path.stem
      for path in folder().glob('*.py')
      if not path.stem.startswith('_')
  )


def find(name: str) -> pathlib.Path:
  """Returns the file of a recipe, given its path or its bare name.

  Raises:
    UserError: If there is no such file; lists the names.
  """
  path = pathlib.Path(name)
  if path.is_file():
    return path
  known = folder() / f'{path.stem}.py'
  bare = path.parent in (pathlib.Path('.'), pathlib.Path('configs'))
  if bare and path.suffix in ('', '.py') and known.is_file():
    return known
  raise UserError(
      f'no config file {name}{_nearest(path.stem, names())}; available: '
      f'{", ".join(names())}'
  )


def default_workdir(spec: str) -> pathlib.Path:
  """Returns `runs/NAME`, or `runs/NAME_ARGUMENT`, for what --config names."""
  name, _, argument = spec.partition(':')
  stem = pathlib.Path(name).stem
  return pathlib.Path('runs') / (f'{stem}_{argument}' if argument else stem)


def load(spec: str, overrides: Sequence[str]) -> ml_collections.ConfigDict:
  """Returns the recipe with its overrides, locked.

  Args:
    spec: `FILE_OR_NAME[:ARGUMENT]`.
    overrides: Arguments of the form `--config.FIELD=VALUE`.

  Raises:
    UserError: If file, argument, field or value are not as they should be.
  """
  from absl import flags
  from ml_collections import config_flags

  name, colon, argument = spec.partition(':')
  argv = ['train', f'--config={find(name)}{colon}{argument}', *overrides]
  # Flags of our own: nothing of another library's is accepted or listed.
  values = flags.FlagValues()
  values.mark_as_parsed()
  config_flags.DEFINE_config_file(
      'config', None, flag_values=values, lock_config=True, sys_argv=argv
  )
  try:
    rest = values(argv)
  except AttributeError as error:
    raise UserError(_unknown_field(error)) from error
  except (flags.Error, ValueError, TypeError) as error:
    raise UserError(_bad_value(error)) from error
  if rest[1:]:
    raise UserError(f"cannot make sense of '{rest[1]}'")
  return values.config


def _unknown_field(error):
  lines = [line for line in str(error).strip().splitlines() if line.strip()]
  return f'unknown config field: {" ".join(lines)}'


def _bad_value(error):
  """Returns the last line that says something, without the traceback."""
  lines = [line for line in str(error).strip().splitlines() if line.strip()]
  line = re.sub(r'^\w*Error: ', '', lines[-1])
  return re.sub(r'^flag --', '--', line)


def _nearest(name, known):
  near = difflib.get_close_matches(name, known, n=1)
  return f' (did you mean {near[0]}?)' if near else ''
