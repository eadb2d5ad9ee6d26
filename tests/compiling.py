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
