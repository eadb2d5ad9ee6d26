"""Compiler options, background compilation, and the compilation cache."""

from collections.abc import Callable
import concurrent.futures
import contextlib
from typing import Any

import jax

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal


def keep_programs() -> None:
  """Caches programs for an accelerator in the user's cache folder.

  Compiling for an accelerator takes minutes, mostly to choose among kernels. A
  cache folder that is already set (`JAX_COMPILATION_CACHE_DIR`) is kept, and
  `JAX_ENABLE_COMPILATION_CACHE=false` turns the cache off. On a CPU nothing is
  cached: programs that JAX 0.10 makes for the cache run on one core. Nor is
  anything for several processes: XLA tunes kernels in all of them together, so
  one that finds its program in a folder of its host alone would let the others
  wait.
  """
  if jax.default_backend() == 'cpu' or jax.config.jax_compilation_cache_dir:
    return
  if jax.process_count() > 1:
    return
  with contextlib.suppress(UserError):  # There is no home.
    folder = files.user_cache() / 'compiled'
    jax.config.update('jax_compilation_cache_dir', str(folder))


def quick_compilation() -> dict[str, int | bool] | None:
  """Returns compiler options for programs that compile longer than they run.

  On a CPU, they turn off LLVM's optimisation and, in JAX 0.10, select the older
  of two ways to generate kernels. Compiling a train step then takes a third of
  the work. They also keep XLA from splitting a program into parts for LLVM,
  which saves a tenth of the rest: the other cores have another program to
  compile. For other devices, returns None.
  """
  if jax.default_backend() != 'cpu':
    return None
  options = {
      'xla_backend_optimization_level': 0,
      'xla_cpu_parallel_codegen_split_count': 1,
  }
  if jax.__version_info__[:2] == (0, 10):
    options['xla_cpu_use_fusion_emitters'] = False
  return options


def show_compilation(
    function: Any, name: str, terminal: Terminal
) -> Callable[..., Any]:
  """Wraps a jitted function; its first call shows `Compiling NAME (once)`."""
  known = False

  def call(*args):
    nonlocal known
    if not known:
      with terminal.busy(f'Compiling {name} (once)'):
        compiled(function.trace(*args))
      known = True
    return function(*args)  # JAX finds the compiled program.

  return call


def compiled(traced: jax.stages.Traced) -> Callable[..., Any]:
  """Compiles a traced function in a thread and waits for it.

  If XLA compiled in the main thread, JAX 0.12 would handle no signal until it
  is done.
  """
  return in_thread(traced.lower().compile).result()


def in_thread(function: Callable[[], Any]) -> concurrent.futures.Future:
  """Calls a function in a thread that only the interpreter's exit waits for.

  The caller can trace, compile and run other programs meanwhile, since XLA does
  not need Python.

  XLA does not stop for a signal, and exiting while it compiles crashes, so
  Python waits for the thread before it exits. `guard.exits` does not wait.
  """
  executor = concurrent.futures.ThreadPoolExecutor(1)
  called = executor.submit(function)
  executor.shutdown(wait=False)
  return called
