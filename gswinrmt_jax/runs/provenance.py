"""Provenance of a run: `environment.json`, with one entry per start."""

import datetime
import importlib.metadata
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
# Prefixes of environment variables that change results or their rounding.
_PREFIXES = ('XLA_', 'JAX_', 'NVIDIA_TF32', 'TF_CUDNN', 'CUBLAS_', 'LIBTPU_')
_SETTINGS = (
    'jax_default_matmul_precision',
    'jax_enable_x64',
    'jax_threefry_partitionable',
)


def record(
    folder: pathlib.Path, config: ml_collections.ConfigDict, step: int
) -> None:
  """Adds a start of the run to `environment.json`.

  Args:
    folder: The run folder.
    config: The resolved config.
    step: Number of updates made before this start.
  """
  path = folder / 'environment.json'
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
      'versions': {package: _version(package) for package in _PACKAGES},
      'variables': {
          name: value
          for name, value in sorted(os.environ.items())
          if name.startswith(_PREFIXES)
      },
      'settings': {name: getattr(jax.config, name) for name in _SETTINGS},
      'commit': _commit(),
      'config': config.to_dict(),
  }
  files.write_json(path, [*_earlier_starts(path), start])


def _earlier_starts(path):
  """Returns the entries so far; a damaged file must not stop a run."""
  try:
    starts = files.read_json(path)
  except (FileNotFoundError, UserError):
    return []
  return starts if isinstance(starts, list) else []


def _version(package):
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None  # run from a source tree


def _commit():
  """Returns the commit of the source tree; None outside a Git repository."""
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
