"""The folder of a run: its recipe, and whose it is."""

from collections.abc import Mapping
import pathlib
from typing import Any

import ml_collections

from gswinrmt_jax import files, recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import provenance

write_json = files.write_json  # for callers that have not moved yet


def check_folder(
    folder: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Checks that a run folder, if it is there, belongs to this recipe.

  Args:
    folder: The run folder.
    config: The resolved recipe.

  Raises:
    UserError: If it belongs to another recipe; names the differing fields.
  """
  if (folder / 'config.json').exists():
    _check_same(load_config(folder), config, folder)
  elif (folder / 'checkpoints').exists():
    raise UserError(
        f'{folder} has checkpoints but no config.json: choose another --workdir'
    )


def check_checkpoint(
    fields: Any, config: ml_collections.ConfigDict, where: pathlib.Path
) -> None:
  """Checks that a checkpoint belongs to this recipe, whatever its folder says.

  Args:
    fields: Its own `config`.
    config: The resolved recipe.
    where: Of the checkpoint.

  Raises:
    UserError: If it belongs to another recipe; names the differing fields.
  """
  _check_same(recipes.from_json(fields, str(where)), config, where)


def _check_same(found, config, where):
  differing = differences(found, config)
  if differing:
    raise UserError(
        f'{where} belongs to another config: {"; ".join(differing)}; '
        'choose another --workdir'
    )


def open_folder(
    folder: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Makes the run folder, or goes on in one that belongs to this recipe.

  Args:
    folder: The run folder.
    config: The resolved recipe; written to `config.json` if there is none.

  Raises:
    UserError: If it cannot be written, or belongs to another recipe.
  """
  try:
    check_folder(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / 'config.json').exists():
      files.write_json(folder / 'config.json', config.to_dict())
  except OSError as error:
    raise UserError(
        f'cannot write to {folder}: {error.strerror or error}; choose another '
        '--workdir'
    ) from error


def load_config(folder: pathlib.Path) -> ml_collections.ConfigDict:
  """Returns the recipe of a run folder, resolved.

  Fields that it does not have, being older, are as they were before they came.

  Raises:
    UserError: If there is none that can be read.
  """
  path = folder / 'config.json'
  try:
    fields = files.read_json(path)
  except FileNotFoundError:
    raise UserError(
        f'{folder} is no run folder: it has no config.json'
    ) from None
  return recipes.from_json(fields, str(path))


def differences(
    old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Lists `field is OLD there and NEW here`, for fields that change results."""
  old, new = _flat(old.to_dict()), _flat(new.to_dict())
  free = recipes.free_fields()
  return [
      f'{field} is {value!r} there and {new.get(field)!r} here'
      for field, value in sorted(old.items())
      if field not in free and value != new.get(field)
  ]


def record_start(
    folder: pathlib.Path, config: ml_collections.ConfigDict, step: int
) -> None:
  """Adds this start to `provenance.json`, see `provenance.record`.

  And keeps the recipe, whose free fields may be others than before: not until
  what there is has been restored, since it is by its recipe that it can be.
  """
  files.write_json(folder / 'config.json', config.to_dict())
  provenance.record(folder, config, step)


def _flat(fields, prefix=''):
  flat = {}
  for name, value in fields.items():
    if isinstance(value, Mapping):
      flat |= _flat(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
