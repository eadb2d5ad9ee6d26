"""Compilation of the training step ahead of time, and its cache on disk."""

from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
import gc
from typing import Any

import jax

from gswinrmt_jax import files
from gswinrmt_jax.terminal import Terminal


def keep_programs() -> None:
  """Caches programs for an accelerator in the user's cache folder.

  Compiling for one takes minutes, mostly for choosing among kernels. A place
  that was chosen before (`JAX_COMPILATION_CACHE_DIR`) stays, and
  `JAX_ENABLE_COMPILATION_CACHE=false` keeps none. On a CPU nothing is kept:
  what JAX 0.10 would keep there runs on one core.
  """
  if jax.default_backend() == 'cpu' or jax.config.jax_compilation_cache_dir:
    return
  folder = files.user_cache() / 'compiled'
  jax.config.update('jax_compilation_cache_dir', str(folder))


@contextlib.contextmanager
def in_background(
    function: Any, *args: Any, terminal: Terminal
) -> Iterator[Callable[[], Callable[..., Any]]]:
  """Traces the training step and compiles it in a thread.

  Inside, other programs can be traced, compiled and run: XLA needs nothing of
  Python.

  Args:
    function: The training step, jitted.
    *args: Its arguments, or their shapes.
    terminal: Where the elapsed time is shown.

  Yields:
    Function that waits for the compiled step and returns it.
  """
  with terminal.busy('Compiling the training step (once)'):
    # Tracing makes objects by the million, which Python would look through
    # again and again: a fifth of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
      lowered = function.lower(*args)
    finally:
      if was_enabled:
        gc.enable()
    yield _in_thread(lowered.compile).result


def announced(
    function: Any, name: str, terminal: Terminal
) -> Callable[..., Any]:
  """Returns a jitted function whose first call shows that it compiles.

  Args:
    function: The function, jitted.
    name: What it is called in the message.
    terminal: Where the elapsed time is shown.
  """
  known = False

  def call(*args):
    nonlocal known
    if not known:
      with terminal.busy(f'Compiling {name} (once)'):
        compiled(function.trace(*args))
      known = True
    return function(*args)  # JAX finds the program that was compiled.

  return call


def compiled(traced: jax.stages.Traced) -> Callable[..., Any]:
  """Compiles a traced function in a thread and waits for it.

  Where XLA compiles in the main thread, JAX 0.12 hears no signal until it is
  done.
  """
  return _in_thread(traced.lower().compile).result()


def _in_thread(function: Callable[[], Any]) -> concurrent.futures.Future:
  """Calls a function in a thread that nothing but the interpreter waits for.

  XLA does not stop for a signal, and exiting under the compiler crashes, so
  Python waits for the thread before it exits; `guard.exits` does not.
  """
  executor = concurrent.futures.ThreadPoolExecutor(1)
  called = executor.submit(function)
  executor.shutdown(wait=False)
  return called
