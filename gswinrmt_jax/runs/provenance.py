"""What a run was made by and on: `RUN/environment.json`, an entry a start."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys

import jax
import ml_collections

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError

_PACKAGES = (
    'gswinrmt_jax jax jaxlib flax optax orbax-checkpoint grain numpy'
).split()
# Variables that change what is computed, or how it rounds.
_PREFIXES = ('XLA_', 'JAX_', 'NVIDIA_TF32', 'TF_CUDNN', 'CUBLAS_', 'LIBTPU_')
_SETTINGS = (
    'jax_default_matmul_precision',
    'jax_enable_x64',
    'jax_threefry_partitionable',
)


def record(
    folder: pathlib.Path, config: ml_collections.ConfigDict, step: int
) -> None:
  """Adds a start of the run: versions, device, flags, commit, recipe, step."""
  path = folder / 'environment.json'
  starts = _starts(path)
  device = jax.devices()[0]
  now = datetime.datetime.now(datetime.UTC)
  starts.append(
      {
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
          'versions': _versions(),
          'variables': {
              name: value
              for name, value in sorted(os.environ.items())
              if name.startswith(_PREFIXES)
          },
          'settings': {name: getattr(jax.config, name) for name in _SETTINGS},
          'commit': _commit(),
          'config': config.to_dict(),
      }
  )
  with files.replacing(path) as part:
    part.write_text(json.dumps(starts, indent=2) + '\n')


def _starts(path):
  """Returns the starts so far; a damaged file of them stops no run."""
  try:
    starts = files.read_json(path)
  except (FileNotFoundError, UserError):
    return []
  return starts if isinstance(starts, list) else []


def _versions():
  versions = {}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions[package] = None  # run from a source tree
  return versions


def _commit():
  """Returns the commit of the source tree, None outside of one."""
  try:
    done = subprocess.run(
        ['git', 'describe', '--always', '--dirty', '--abbrev=40'],
        cwd=pathlib.Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()
