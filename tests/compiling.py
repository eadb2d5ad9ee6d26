"""XLA flags for tests: fast compilation, which is nearly all of their time.

XLA's own passes, such as fusion, stay on. LLVM's passes are off, and LLVM gets
each program in one part. JAX 0.10 can still build kernels in the old way, which
takes two thirds of the time. In old kernels, the same sum in two programs may
differ in its last bit, so tests of bitwise equality use the usual kernels.
"""

from collections.abc import Iterator
import contextlib
import importlib.metadata
import os
import pathlib
from typing import Any
from unittest import mock

_QUICK = (
    '--xla_backend_optimization_level=0',
    '--xla_cpu_parallel_codegen_split_count=1',
)
_USUAL = 'xla_cpu_use_fusion_emitters'
_OLD = f'--{_USUAL}=false'


def quick_flags() -> str:
  """Returns `XLA_FLAGS` to set before JAX starts, in child processes too."""
  flags = [*_QUICK]
  if importlib.metadata.version('jaxlib').startswith('0.10.'):
    flags.append(_OLD)
  return ' '.join(flags)


def usual_flags() -> str:
  """Returns `XLA_FLAGS` for a process with the usual kernels."""
  return os.environ.get('XLA_FLAGS', '').replace(_OLD, '')


def cache_settings(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the settings of JAX with which processes share compiled programs.

  Only a folder of bounded size is locked while it is read and written.
  """
  return {
      'jax_compilation_cache_dir': str(folder),
      'jax_compilation_cache_max_size': 2**34,
      'jax_persistent_cache_min_compile_time_secs': 0.0,
      'jax_persistent_cache_min_entry_size_bytes': -1,
  }


def cache_environment(folder: pathlib.Path) -> dict[str, str]:
  """Returns these settings as environment variables of another process."""
  settings = cache_settings(folder).items()
  return {name.upper(): str(value) for name, value in settings}


@contextlib.contextmanager
def usual_kernels() -> Iterator[None]:
  """Makes `jax.jit` build the usual kernels within the context."""
  import jax

  if _OLD not in os.environ.get('XLA_FLAGS', ''):
    yield
    return
  plain = jax.jit

  def jit(fun, *, compiler_options=None, **options):
    options['compiler_options'] = {**(compiler_options or {}), _USUAL: True}
    return plain(fun, **options)

  with mock.patch.object(jax, 'jit', jit):
    yield
