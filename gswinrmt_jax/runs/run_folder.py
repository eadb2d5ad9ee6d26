"""The folder of a run: its config, and the process that trains in it.

config.json          the resolved config
environment.json     software and hardware of each start (`provenance`)
data.json            the data set and its splits (`dataset_record`)
metrics.jsonl        metrics of each interval and epoch (`metrics_log`)
checkpoints/STEP/    (`checkpoints.checkpointer`)
summary.json         written at the end (`summary`)
"""

from collections.abc import Iterator
import contextlib
import pathlib

from flax import traverse_util
import ml_collections

from gswinrmt_jax import files, recipes
from gswinrmt_jax.errors import UserError

_CONFIG, _LOCK = 'config.json', '.lock'
_SHOWN = 3  # most differing fields that a message names


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Iterator[None]:
  """Creates a run folder if it is missing, and holds its lock.

  Removes leftovers of a killed process. At the end, removes a folder created
  here if it is still empty.

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
    check_same(load_config(folder), config, folder)
  elif (folder / 'checkpoints').exists():
    raise UserError(
        f'{folder} has checkpoints but no config.json: choose another --workdir'
    )


def check_same(
    found: ml_collections.ConfigDict,
    config: ml_collections.ConfigDict,
    path: pathlib.Path,
) -> None:
  """Checks that a run's config is this one, apart from free fields.

  Args:
    found: The run's config.
    config: The resolved config.
    path: Where `found` was read from, for the message.

  Raises:
    UserError: If the configs differ; names the fields.
  """
  if differing := differences(found, config):
    if len(differing) > _SHOWN:
      differing[_SHOWN:] = [f'and {len(differing) - _SHOWN} more']
    raise UserError(
        f'{path} belongs to another config: {"; ".join(differing)}; choose '
        'another --workdir (--workdir=auto names one by what was changed)'
    )


def write_config(
    folder: pathlib.Path,
    config: ml_collections.ConfigDict,
    *,
    replace: bool = True,
) -> None:
  """Writes `config.json`, over an existing one only if `replace` is set."""
  if replace or not (folder / _CONFIG).exists():
    files.write_json(folder / _CONFIG, config.to_dict())


def load_config(folder: pathlib.Path) -> ml_collections.ConfigDict:
  """Returns the resolved config of a run folder, even of an earlier version.

  Raises:
    UserError: If there is none, or it cannot be read.
  """
  path = folder / _CONFIG
  try:
    fields = files.read_json(path)
  except FileNotFoundError:
    raise UserError(
        f'{folder} is not a run folder, such as runs/NAME: it has no {_CONFIG}'
    ) from None
  return recipes.from_json(fields, str(path))


def differences(
    old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Lists `field is OLD there and NEW here`, for fields that change results."""
  old, new = (
      traverse_util.flatten_dict(config.to_dict(), sep='.')
      for config in (old, new)
  )
  free = recipes.free_fields()
  return [
      f'{field} is {value!r} there and {new.get(field)!r} here'
      for field, value in sorted(old.items())
      if field not in free and value != new.get(field)
  ]


def _cannot_write(folder, error):
  return UserError(
      f'cannot write to {folder}: {error.strerror or error}; choose another '
      '--workdir'
  )


def _remove_if_empty(folder):
  with contextlib.suppress(OSError):
    folder.rmdir()
