"""How tests have XLA compile: quickly, since nearly all of their time is that.

XLA's own passes, fusion among them, stay; LLVM's are left out, and it gets a
program in one part. Where there is a choice, in JAX 0.10, kernels are made the
old way, in two thirds of the time. In these, the same sums in two programs may
differ in their last bit, so what is to change no bit is tested with the usual
ones.
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
  """Returns `XLA_FLAGS`, to be set before JAX starts; for processes as well."""
  flags = [*_QUICK]
  if importlib.metadata.version('jaxlib').startswith('0.10.'):
    flags.append(_OLD)
  return ' '.join(flags)


def usual_flags() -> str:
  """Returns `XLA_FLAGS` of a process with the usual kernels."""
  return os.environ.get('XLA_FLAGS', '').replace(_OLD, '')


@contextlib.contextmanager
def usual_kernels() -> Iterator[None]:
  """Has `jax.jit` make the usual kernels of what it is given meanwhile."""
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
