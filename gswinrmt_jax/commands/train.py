"""`gswinrmt train`, which is also `python train.py`."""

from collections.abc import Sequence
import dataclasses
import difflib
import os
import pathlib
import re
import shlex
import sys
import textwrap

import ml_collections

from gswinrmt_jax import allocator, recipes
from gswinrmt_jax.commands import arguments, guard, recipe_files
from gswinrmt_jax.errors import UserError

_USAGE = """\
usage: {program} --config=RECIPE [--workdir=DIR]
           [--config.FIELD=VALUE ...]

Trains a model. The same command resumes an interrupted run.

  --config=NAME[:ARGUMENT]   the recipe: one of those below, or a Python file
  --config.FIELD=VALUE       changes a field of the recipe
  --workdir=DIR              run folder (default: runs/NAME); `auto` names it by
                             the fields given, as in runs/digits_rmt-seed=1
  --help                     this text; with --config, all fields of the recipe

  --coordinator=HOST:PORT --processes=N --process=I
                             joins processes that train together, if no launcher
                             starts them (docs/scaling.md)

recipes:
{names}

examples:
  {program} --config=digits_retention
  {program} --help --config=digits_retention
  {program} --config=cifar10_swat --config.batch_size=64 --workdir=auto"""

_JOINING = ('coordinator', 'processes', 'process')
_OPTIONS = ('config', 'workdir', 'help', *_JOINING)
_WIDTH = 100  # characters per line in the list of fields


def main(
    argv: Sequence[str] | None = None, program: str = 'python train.py'
) -> int:
  """Runs the command and returns the exit status.

  Args:
    argv: Arguments, without the program's name; None takes the process's.
    program: The command that the user called.
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
    else:
      config, folder, lines = _configured(spec, overrides, options)

      # Imported here: the lines above need no JAX.
      from gswinrmt_jax.distributed import processes
      from gswinrmt_jax.train import train_loop

      processes.start(*(options.get(name, '') for name in _JOINING))
      for line in lines:
        processes.terminal().say(line)
      summary = train_loop.train(config, folder)
      processes.terminal().say(_next_steps(folder, summary, config))
  return outcome.status


def _configured(spec, overrides, options):
  """Returns the config of a run, its folder, and lines for the user."""
  recipe, config, lines = recipe_files.adapted(spec, overrides)
  recipes.check(config)
  if not config.data.name:
    raise UserError('--config.data.name is missing: name a folder of images')
  if config.init_from:
    config.init_from = arguments.weights(config.init_from)
  for name in ('data.dir', 'data.label_maps'):
    if config[name]:
      config.update_from_flattened_dict({name: arguments.path(config[name])})
  folder = _workdir(options.get('workdir'), spec, recipe, overrides, config)
  if not (folder / 'config.json').exists():  # A run is resumed as it began.
    recipes.check_used(config, recipe)
  notice = allocator.notice()
  return config, folder, [notice, *lines] if notice else lines


def _workdir(chosen, spec, recipe, overrides, config):
  """Returns the run folder: --workdir, the one for 'auto', or the default."""
  default = recipe_files.default_workdir(spec)
  if not recipe.data.name:  # A recipe for any data: a folder for each.
    data = os.path.basename(os.path.abspath(config.data.name))  # of '..', too
    default = default.with_name(f'{default.name}_{data}')
  if chosen != 'auto':
    return pathlib.Path(arguments.path(chosen) if chosen else default)
  # Fields that change no result do not count: a run may resume with new values.
  left_out = recipes.free_fields()
  if not recipe.data.name:  # The folder has its name.
    left_out |= {'data.name'}
  given = recipe_files.given(overrides) - left_out
  fields = (*recipes.FIELDS, *sorted(given - recipes.FIELDS.keys()))
  changed = (f'-{_short(p)}={_text(config[p])}' for p in fields if p in given)
  name = re.sub(r'[^\w.,=+-]', '', default.name + ''.join(changed))
  return default.with_name(name)


def _short(path):
  """Returns the last word of a path; for `SECTION.name`, the section."""
  section, _, name = path.rpartition('.')
  return section if name == 'name' else name


def _next_steps(folder, summary, config):
  """Returns the commands that usually follow a run."""
  from gswinrmt_jax.runs import summary as summary_lib

  folder = shlex.quote(str(folder))
  # The test split is for the end of a run, and not all data has one.
  split = '' if summary_lib.is_tested(summary) else ' --split val'
  lines = ['', 'Next:', f'  gswinrmt evaluate {folder}{split}']
  if config.segmenter.head or config.detector.head:
    lines.append(f'  gswinrmt predict {folder} IMAGE --out predictions')
  else:
    lines.append(f'  gswinrmt predict {folder} IMAGE --maps maps')
    lines.append(f'  gswinrmt export {folder} --format safetensors')
  return '\n'.join(lines)


def _print_help(program, spec, overrides):
  if not spec:
    names = '\n'.join(f'  {name}' for name in recipe_files.names())
    print(_USAGE.format(program=program, names=names))
    return
  config = recipe_files.load(spec, overrides)
  recipes.check_values(config)
  print(f'usage: {program} --config={spec} [--config.FIELD=VALUE ...]')
  print(f'\nfields of {spec}: value, meaning\n\n{describe(config)}')


def describe(config: ml_collections.ConfigDict) -> str:
  """Returns a table of the fields: value, meaning, choices.

  Fields of the model have the values of the run.

  Raises:
    UserError: As in `recipes.model_fields`.
  """
  from gswinrmt_jax.models import architecture

  model = recipes.model_fields(config)
  del model['name']
  groups, values = {}, dict(recipe_files.leaves(config))
  for path, declared in recipes.FIELDS.items():
    choices = ', '.join(declared.choices)
    meaning = declared.meaning + (f' ({choices})' if choices else '')
    row = path, _text(values[path]), meaning
    groups.setdefault(path.rpartition('.')[0], []).append(row)
  meanings = {
      field.name: field.metadata['help'].replace('`', '').rstrip('.')
      for field in dataclasses.fields(architecture.Architecture)
  }
  groups['model'] += [
      (f'model.{field}', _text(value), meanings[field])
      for field, value in model.items()
  ]
  return '\n\n'.join(map(_columns, groups.values()))


def _columns(rows):
  """Aligns fields, values and meanings, which may take several lines."""
  field, value = (max(len(row[column]) for row in rows) for column in (0, 1))
  value = min(value, 26)
  indent = field + value + 4
  lines = []
  for name, shown, meaning in rows:
    first, *rest = textwrap.wrap(meaning, _WIDTH - indent) or ['']
    lines.append(f'{name:<{field}}  {shown:<{value}}  {first}'.rstrip())
    lines += [' ' * indent + line for line in rest]
  return '\n'.join(lines)


def _text(value):
  """Returns a value as it can be written on the command line."""
  if isinstance(value, tuple):
    return f'({",".join(map(_text, value))}{"," * (len(value) == 1)})'
  if isinstance(value, float):
    return f'{value:.6g}'
  return str(value) if value != '' else "''"


def _split(argv):
  """Splits arguments into options such as `--config`, and the overrides."""
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
    elif name in _OPTIONS:
      value = rest.pop(0) if has_next else value
      if not value:
        raise UserError(f'--{name} needs a value')
      options[name] = value
    else:
      raise UserError(f"unknown argument '{argument}'{_meant(argument)}")
  return options, overrides


def _meant(argument):
  """Suggests an option, or a field that was typed without `--config.`."""
  name = argument.partition('=')[0].lstrip('-').removeprefix('config.')
  if not argument.startswith('-') and name not in _OPTIONS:
    recipe, colon, rest = argument.partition(':')
    if recipe in recipe_files.names():
      return f' (did you mean --config={recipe}{colon}{rest}?)'
    return ': arguments are --NAME=VALUE (--help lists them)'
  if near := difflib.get_close_matches(name, _OPTIONS, 1, cutoff=0.75):
    return f' (did you mean --{near[0]}?)'
  field = recipe_files.nearest_field(name, recipes.FIELDS)
  return field or ' (--help lists the arguments)'
