"""The folder of a run: its config, and the process that trains in it.

config.json          the resolved config
environment.json     what each start ran on (`provenance`)
data.json            the data set and its splits (`dataset_record`)
metrics.jsonl        figures of each interval and epoch (`metrics_log`)
checkpoints/STEP/    (`checkpoints.checkpointer`)
summary.json         written at the end (`summary`)
"""

from collections.abc import Iterator, Mapping
import contextlib
import pathlib
from typing import Any

import ml_collections

from gswinrmt_jax import files, recipes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import provenance

_CONFIG, _LOCK = 'config.json', '.lock'


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Iterator[None]:
  """Makes a run folder if it is missing, and holds its lock.

  Leftovers of a killed process are removed. A folder that is still empty at the
  end is removed again.

  Raises:
    UserError: If another process trains there, or it cannot be written to.
  """
  with contextlib.ExitStack() as stack:
    try:
      if not folder.exists():
        folder.mkdir(parents=True)
        stack.callback(_remove_if_empty, folder)
      stack.enter_context(files.locked(folder / _LOCK))
      files.remove_leftovers(folder)
    except files.LockedError as holder:
      raise UserError(
          f'{folder} is being trained by {holder}: wait for it, or choose '
          'another --workdir'
      ) from None
    except OSError as error:
      raise _cannot_write(folder, error) from error
    yield


def check_folder(
    folder: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Checks that a run folder, if it exists, belongs to this config.

  Args:
    folder: The run folder.
    config: The resolved config.

  Raises:
    UserError: If it belongs to another config; names the fields that differ.
  """
  if (folder / _CONFIG).exists():
    _check_same(load_config(folder), config, folder)
  elif (folder / 'checkpoints').exists():
    raise UserError(
        f'{folder} has checkpoints but no config.json: choose another --workdir'
    )


def check_checkpoint(
    fields: Any, config: ml_collections.ConfigDict, path: pathlib.Path
) -> None:
  """Checks that a checkpoint belongs to this config.

  Args:
    fields: The config in the checkpoint's metadata.
    config: The resolved config.
    path: The checkpoint, for the message.

  Raises:
    UserError: If it belongs to another config; names the fields that differ.
  """
  _check_same(recipes.from_json(fields, str(path)), config, path)


def open_folder(
    folder: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Makes a run folder, or checks that it belongs to this config.

  Args:
    folder: The run folder.
    config: The resolved config; written to `config.json` if there is none.

  Raises:
    UserError: If it cannot be written, or belongs to another config.
  """
  try:
    check_folder(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _CONFIG).exists():
      files.write_json(folder / _CONFIG, config.to_dict())
  except OSError as error:
    raise _cannot_write(folder, error) from error


def record_start(
    folder: pathlib.Path, config: ml_collections.ConfigDict, step: int
) -> None:
  """Adds this start to `environment.json`, see `provenance.record`.

  Also writes `config.json`. Call it after restoring: restoring needs the config
  that the checkpoint was saved with.
  """
  files.write_json(folder / _CONFIG, config.to_dict())
  provenance.record(folder, config, step)


def load_config(folder: pathlib.Path) -> ml_collections.ConfigDict:
  """Returns the resolved config of a run folder, of earlier versions too.

  Raises:
    UserError: If there is none, or it cannot be read.
  """
  path = folder / _CONFIG
  try:
    fields = files.read_json(path)
  except FileNotFoundError:
    raise UserError(f'{folder} is no run folder: it has no {_CONFIG}') from None
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


def _check_same(found, config, path):
  differing = differences(found, config)
  if differing:
    raise UserError(
        f'{path} belongs to another config: {"; ".join(differing)}; '
        'choose another --workdir'
    )


def _cannot_write(folder, error):
  return UserError(
      f'cannot write to {folder}: {error.strerror or error}; choose another '
      '--workdir'
  )


def _remove_if_empty(folder):
  with contextlib.suppress(OSError):
    folder.rmdir()


def _flat(fields, prefix=''):
  flat = {}
  for name, value in fields.items():
    if isinstance(value, Mapping):
      flat |= _flat(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
