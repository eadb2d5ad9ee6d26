"""Compiled programs: made beforehand, and kept from one run to the next."""

from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
import gc
import time
from typing import Any

import jax

from gswinrmt_jax import files
from gswinrmt_jax.runs import metrics_log


def keep_programs() -> None:
  """Has JAX keep programs for an accelerator in the user's cache folder.

  Compiling for one takes minutes, mostly for choosing among kernels. Whoever
  has told JAX of a place (`JAX_COMPILATION_CACHE_DIR`) keeps it, and
  `JAX_ENABLE_COMPILATION_CACHE=false` keeps none. On a CPU nothing is kept:
  there JAX 0.10 makes what it would keep for one core.
  """
  if jax.default_backend() == 'cpu' or jax.config.jax_compilation_cache_dir:
    return
  folder = files.user_cache() / 'compiled'
  jax.config.update('jax_compilation_cache_dir', str(folder))


def begin(
    function: Any, *args: Any, terminal: metrics_log.Terminal
) -> Callable[[], Any]:
  """Traces the training step, and has a thread compile it.

  Meanwhile other programs can be traced, compiled and run: XLA needs nothing of
  Python.

  Args:
    function: The jitted step.
    *args: What it will be called with, or their shapes.
    terminal: Is told how long it took.

  Returns:
    What waits for the compiled step and returns it.
  """
  terminal.progress('Compiling the training step ...')
  before = time.perf_counter()
  program = lowered(function, *args)

  def compile_lowered():
    return program.compile(), time.perf_counter() - before

  compiling = in_thread(compile_lowered)

  def finish():
    step, seconds = compiling.result()
    terminal.say(
        f'Compiled the training step in {metrics_log.duration(seconds)}.'
    )
    return step

  return finish


def compiled(program: Any) -> Any:
  """Has a thread compile what `lowered` returned, and waits for it.

  Where XLA compiles in the main thread, JAX 0.12 hears no signal until it is
  done.
  """
  return in_thread(program.compile).result()


def in_thread(function: Callable[[], Any]) -> concurrent.futures.Future:
  """Has a thread call it.

  XLA does not end sooner for what ends the run. Python waits for the thread
  before it exits, as exiting under the compiler crashes it; `guard.exits` does
  not wait.
  """
  thread = concurrent.futures.ThreadPoolExecutor(1)
  called = thread.submit(function)
  thread.shutdown(wait=False)
  return called


def traced(function: Any, *args: Any) -> Any:
  """Returns a jitted function, traced for these arguments or their shapes."""
  with _no_garbage_collection():
    return function.trace(*args)


def lowered(function: Any, *args: Any) -> Any:
  """Returns a jitted function as the program that XLA is to compile."""
  with _no_garbage_collection():
    return function.lower(*args)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
  """Else Python looks through all that tracing makes: a fifth of its time."""
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()
