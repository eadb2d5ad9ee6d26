"""Loads `--config=FILE_OR_NAME[:ARGUMENT] --config.FIELD=VALUE`."""

from collections.abc import Iterable, Iterator, Sequence
import copy
import difflib
import importlib.util
import inspect
import pathlib
from typing import Any

import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import did_you_mean, UserError

_KINDS = {
    bool: 'True or False',
    int: 'a whole number',
    float: 'a number',
    str: 'text',
    tuple: 'a tuple, such as (1,2)',
}
_PACKAGE = pathlib.Path(__file__).parent.parent


def folder() -> pathlib.Path:
  """Returns the folder of recipes: in the package, or next to it in a clone."""
  inside = _PACKAGE / 'configs'
  return inside if inside.is_dir() else _PACKAGE.parent / 'configs'


def names() -> list[str]:
  """Returns the names of the recipes that come with the project."""
  return sorted(path.stem for path in folder().glob('*.py'))


def find(name: str) -> pathlib.Path:
  """Returns the file of a recipe, given its path or its bare name.

  Raises:
    UserError: If there is no such file; the message suggests the nearest one or
      lists all.
  """
  path = pathlib.Path(name)
  if path.is_file() and path.suffix == '.py':
    return path
  known = folder() / f'{path.stem}.py'
  bare = path.parent in (pathlib.Path('.'), pathlib.Path('configs'))
  if bare and path.suffix in ('', '.py') and known.is_file():
    return known
  if path.exists():
    raise UserError(
        f'--config={name}: must be a Python file, NAME.py, or one of '
        f'{", ".join(names())}'
    )
  near = did_you_mean(path.stem, names())
  listed = '; `gswinrmt train --help` lists the recipes'
  raise UserError(f'no recipe {name}{near or listed}')


def default_workdir(spec: str) -> pathlib.Path:
  """Returns `runs/NAME` for --config=NAME, `runs/NAME_A_B` for NAME:A,B."""
  name, _, argument = spec.partition(':')
  stem = pathlib.Path(name).stem
  return pathlib.Path('runs') / (
      '_'.join([stem, *argument.split(',')]) if argument else stem
  )


def load(spec: str, overrides: Sequence[str]) -> ml_collections.ConfigDict:
  """Returns the recipe with its overrides, locked.

  Args:
    spec: `FILE_OR_NAME[:ARGUMENT]`.
    overrides: Arguments of the form `--config.FIELD=VALUE`.

  Raises:
    UserError: If file, argument, field or value are invalid.
  """
  return adapted(spec, overrides)[1]


def adapted(
    spec: str, overrides: Sequence[str]
) -> tuple[ml_collections.ConfigDict, ml_collections.ConfigDict, list[str]]:
  """Returns the recipe, adapted to its overrides; with them; and what to say.

  A recipe file may have a function `adapt(config, given)` beside `get_config`,
  where `given` are the fields with an override. It returns fields that suit the
  config, such as the number of epochs for its data, and lines for the user.
  Overrides precede these fields.

  Arguments and errors are those of `load`.
  """
  name, _, argument = spec.partition(':')
  module, recipe = _get_config(find(name), argument or None)
  config, lines = _override(copy.deepcopy(recipe), overrides), []
  # A smoke test is the same whatever the data.
  if hasattr(module, 'adapt') and not argument.endswith('smoke'):
    recipes.check_values(config)
    taken = given(overrides)
    fields, lines = module.adapt(config, taken)
    recipe.update_from_flattened_dict(
        {path: value for path, value in fields.items() if path not in taken}
    )
    config = _override(copy.deepcopy(recipe), overrides)
  return recipe, config, lines


def given(overrides: Sequence[str]) -> set[str]:
  """Returns the fields that have an override."""
  return {one.partition('=')[0].partition('.')[2] for one in overrides}


def _override(config, overrides):
  """Returns the config with its overrides."""
  from absl import flags
  from ml_collections import config_flags

  # Of a repeated field the last counts. ml_collections would join two tuples.
  given = {one.partition('=')[0]: one for one in overrides}
  kinds = {name: _kind(config, name) for name in given}
  # Separate flags, so that those of other libraries are not accepted or listed.
  values = flags.FlagValues()
  argv = ['train', *given.values()]
  try:
    config_flags.DEFINE_config_dict(
        'config', config, flag_values=values, lock_config=True, sys_argv=argv
    )
    values(argv)
  except (flags.Error, TypeError, ValueError) as error:
    named = [name for name in given if name in str(error)]
    if not named:
      raise
    name = max(named, key=len)  # One name may begin another.
    kind = _KINDS[kinds[name]]
    raise UserError(f'{given[name]}: must be {kind}') from error
  return values.config


def _kind(config, name):
  """Returns the type of an override's field; refuses groups, unknown names."""
  path = name.partition('.')[2]
  here = config
  for word in path.split('.'):
    if not isinstance(here, ml_collections.ConfigDict) or word not in here:
      near = nearest_field(path, dict(leaves(config)))
      raise UserError(f'there is no config field {path}{near}')
    parent, here = here, here[word]
  if isinstance(here, ml_collections.ConfigDict):
    raise UserError(
        f'config.{path} is a group of fields: {", ".join(sorted(here))}'
    )
  return parent.get_type(word)


def _get_config(path, argument):
  """Returns the module of a recipe file, and the recipe.

  A `UserError` of `get_config` refuses the argument. Any other error is a
  mistake in the file and keeps its traceback, which shows the line.
  """
  module_spec = importlib.util.spec_from_file_location('recipe', path)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  if not hasattr(module, 'get_config'):
    raise UserError(f'{path} is not a recipe: it has no function get_config')
  takes = bool(inspect.signature(module.get_config).parameters)
  if argument and not takes:
    raise UserError(f'{path.name} takes no argument: leave out :{argument}')
  try:
    config = module.get_config(*([argument] if takes else []))
  except UserError as error:
    raise UserError(f'{path.name}: {error}') from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise UserError(
        f'{path}: get_config must return a ConfigDict, not {config!r:.80}'
    )
  return module, config


def nearest_field(path: str, paths: Iterable[str]) -> str:
  """Suggests a field for a mistyped one, by its path or only by its last word.

  Args:
    path: The field as typed, such as 'learning_rate' or 'model.dephts'.
    paths: All fields, such as 'optimizer.learning_rate'.

  Returns:
    ` (did you mean --config.FIELD?)` or the like, '' if no field is near.
  """
  paths = list(paths)
  if path.rpartition('.')[2] == 'num_classes':
    return ' (the classes are those of config.data.name)'
  if f'{path}.name' in paths:  # `data` is the `data.name`
    return f' (did you mean --config.{path}.name?)'
  last = path.rpartition('.')[2]
  by_last = {known.rpartition('.')[2]: known for known in reversed(paths)}
  has_word = [each for each in by_last if last in each.split('_')]
  # `lr` is the `learning_rate`.
  initials = [
      each for each in by_last if last == ''.join(w[0] for w in each.split('_'))
  ]
  near = (
      [by_last[each] for each in initials if len(last) > 1]
      or difflib.get_close_matches(path, paths, n=1, cutoff=0.8)
      or [by_last[each] for each in sorted(has_word, key=len)]
      or [by_last[word] for word in difflib.get_close_matches(last, by_last, 1)]
      or difflib.get_close_matches(path, paths, n=1)
  )
  return f' (did you mean --config.{near[0]}?)' if near else ''


def leaves(
    config: ml_collections.ConfigDict, prefix: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the path and the value of each field."""
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from leaves(value, f'{prefix}{name}.')
    else:
      yield f'{prefix}{name}', value
