"""The folder of a run: its config, its starts, the process that trains in it.

config.json          the resolved config
environment.json     software and hardware of each start
data.json            the data set and its splits (`dataset_record`)
metrics.jsonl        metrics of each interval and epoch (`metrics_log`)
checkpoints/STEP/    (`checkpoints.checkpointer`)
damaged_checkpoints/ checkpoints that failed their checksums
curves.png           loss and accuracy by epoch (`plots`)
augmented_batch.png  images before and after augmentation (`plots`)
tensorboard/         the same metrics as events (`writers`)
profile/             the trace of `config.profile_steps` (`train.profiler`)
summary.json         written at the end (`summary`)
"""

from collections.abc import Iterator
import contextlib
import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys

from flax import traverse_util
import jax
import ml_collections

import gswinrmt_jax
from gswinrmt_jax import files, recipes
from gswinrmt_jax.errors import UserError

_CONFIG, _LOCK = 'config.json', '.lock'
_SHOWN = 3  # most differing fields that a message names
_PACKAGES = 'jax jaxlib flax optax orbax-checkpoint grain numpy'.split()
# Prefixes of environment variables that change results, rounding or speed.
_PREFIXES = (
    *('XLA_', 'JAX_', 'NVIDIA_TF32', 'TF_CUDNN', 'CUBLAS_', 'LIBTPU_'),
    *('LD_PRELOAD', 'MALLOC_', 'MIMALLOC_'),
)
_SETTINGS = (
    'jax_default_matmul_precision',
    'jax_enable_x64',
    'jax_threefry_partitionable',
)


@contextlib.contextmanager
def lock(folder: pathlib.Path) -> Iterator[bool]:
  """Creates a run folder if it is missing, and holds its lock.

  Removes leftovers of a killed process, if it holds the lock: they could be
  what another process is writing. At the end, removes a folder created here if
  it is still empty.

  Yields:
    Whether the lock is effective, see `files.locked`.

  Raises:
    UserError: If another process trains there, or it cannot be written to.
  """
  with contextlib.ExitStack() as stack:
    try:
      if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        stack.callback(_remove_if_empty, folder)
      held = stack.enter_context(files.locked(folder / _LOCK))
      if held:
        files.remove_leftovers(folder)
    except files.LockedError as holder:
      raise UserError(
          f'{folder} is being trained by {holder}: wait for it, or choose '
          'another --workdir'
      ) from None
    except OSError as error:
      raise UserError(
          f'cannot write to {folder}: {error.strerror or error}; choose '
          'another --workdir'
      ) from error
    yield held


def check_folder(
    folder: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Checks that a run folder, if it exists, belongs to this resolved config.

  Raises:
    UserError: If it belongs to another config (names the fields that differ),
      or holds files of something else.
  """
  if (folder / _CONFIG).exists():
    check_config(load_config(folder), config, folder)
    return
  for name in ('checkpoints', 'metrics.jsonl', 'summary.json'):
    if (folder / name).exists():  # It would be overwritten.
      raise UserError(
          f'{folder} has {name} but no config.json: choose another --workdir'
      )


def check_config(
    found: ml_collections.ConfigDict,
    config: ml_collections.ConfigDict,
    path: pathlib.Path,
) -> None:
  """Checks that a config, read from `path`, is this one apart from free fields.

  Raises:
    UserError: If the configs differ; names the fields.
  """
  if differing := differences(found, config):
    shown = differing[:_SHOWN]
    if differing[_SHOWN:]:
      shown.append(f'and {len(differing) - _SHOWN} more')
    raise UserError(
        f'{path} belongs to another config: {"; ".join(shown)}; choose another '
        '--workdir (--config.init_from=RUN starts there from the weights of '
        'this run, if it has any)'
    )


def differences(
    old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Lists `field is OLD there and NEW here`, for fields that change results.

  `init_from` comes first: other fields may follow from it. If only the path of
  class folders differs, the list is empty: they may have moved, and the record
  of the data says whether they are the same (`dataset_record`).
  """
  old, new = (
      traverse_util.flatten_dict(config.to_dict(), sep='.')
      for config in (old, new)
  )
  free = recipes.free_fields()
  differing = [
      field
      for field in sorted(old, key=lambda field: (field != 'init_from', field))
      if field not in free and old[field] != new.get(field)
  ]
  if differing == ['data.name'] and all(
      os.path.isabs(each['data.name']) for each in (old, new)
  ):
    return []
  return [
      f'{field} is {old[field]!r} there and {new.get(field)!r} here'
      for field in differing
  ]


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


def record_start(
    folder: pathlib.Path, config: ml_collections.ConfigDict, step: int
) -> None:
  """Adds a start of the run, after `step` updates, to `environment.json`.

  Raises:
    UserError: If that file is damaged.
  """
  path = folder / 'environment.json'
  starts = files.read_json(path) if path.exists() else []
  device = jax.devices()[0]
  now = datetime.datetime.now(datetime.UTC)
  start = {
      'started': now.isoformat('T', 'seconds'),
      'step': step,
      'command': sys.argv,
      'seed': config.seed,
      'device': device.device_kind,
      'backend': device.platform,
      'platform_version': device.client.platform_version,
      'device_count': len(jax.devices()),
      'cpu_count': os.cpu_count(),
      'python': platform.python_version(),
      'versions': {
          'gswinrmt_jax': gswinrmt_jax.__version__,
          **{name: importlib.metadata.version(name) for name in _PACKAGES},
      },
      'variables': {
          name: value
          for name, value in sorted(os.environ.items())
          if name.startswith(_PREFIXES)
      },
      'settings': {name: getattr(jax.config, name) for name in _SETTINGS},
      'commit': _commit(),
      'config': config.to_dict(),
  }
  files.write_json(path, [*starts, start])


def _commit():
  """Returns the commit of the source tree; None if it is not a repository."""
  tree = pathlib.Path(__file__).parents[2]
  if not (tree / '.git').exists():  # An outer repository is somebody else's.
    return None
  try:
    done = subprocess.run(
        ['git', 'describe', '--always', '--dirty', '--abbrev=40'],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()


def _remove_if_empty(folder):
  with contextlib.suppress(OSError):
    folder.rmdir()
