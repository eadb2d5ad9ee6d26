"""Runs each timed program in a process of its own.

The peak memory is then that of the program, and two frameworks never share
threads. This module imports no framework, so that a worker can choose its
cores first.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import pathlib
import runpy
import signal
import sys
import time
from typing import Any

import gswinrmt_jax
from gswinrmt_jax.errors import UserError

Spec = Mapping[str, Any]

_JAX = 'gswinrmt_jax.benchmark.programs'
_PACKAGE = pathlib.Path(gswinrmt_jax.__file__).parent
_TORCH = _PACKAGE.parent / 'benchmarks' / 'torch_programs.py'
_GRACE = 5.0  # seconds that a worker has to end by itself


@dataclasses.dataclass
class Program:
  """A program to be timed, inside its worker.

  Attributes:
    run: Calls the program the given number of times and waits for the results.
    facts: About the program; JSON-serialisable.
    device_peak: Returns the device's peak bytes; None to take the process's.
    ready: Called before each timing and not timed.
    close: Called at the end.
  """

  run: Callable[[int], object]
  facts: dict[str, Any]
  device_peak: Callable[[], int] | None = None
  ready: Callable[[], object] = lambda: None
  close: Callable[[], object] = lambda: None


class WorkerError(UserError):
  """A program could not be built or run: one line saying why."""


class Worker:
  """Handle of a process that runs a program.

  Attributes:
    facts: Facts about the program, and 'build_seconds'.
  """

  def __init__(self, spec: Spec, cores: Sequence[int] | None):
    """Starts the process, which builds its program and calls it once.

    Args:
      spec: For `programs.build`; with a 'peer', for torch_programs.py.
      cores: The cores it may use; None for all.

    Raises:
      WorkerError: If the program cannot be built or called.
    """
    if spec.get('peer') and not _TORCH.exists():
      raise WorkerError('peers need the source tree: there is no benchmarks/')
    context = multiprocessing.get_context('spawn')
    self._pipe, theirs = context.Pipe()
    source = str(_TORCH) if spec.get('peer') else _JAX
    self._process = context.Process(
        target=_serve, args=(theirs, source, dict(spec), cores)
    )
    self._process.start()
    theirs.close()
    try:
      self.facts = self._answer()
    except BaseException:
      self.close()
      raise

  def run(self, calls: int) -> float:
    """Calls the program `calls` times and returns the seconds."""
    return self._answer(calls)

  def peak(self) -> tuple[int | None, str]:
    """Returns the peak bytes, and 'device' or 'process', whose peak it is."""
    return self._answer(0)

  def close(self) -> None:
    """Ends the process, after a few seconds by a signal."""
    self._pipe.close()
    self._process.join(_GRACE)
    self._process.terminate()
    self._process.join()

  def _answer(self, calls=None):
    try:
      if calls is not None:
        self._pipe.send(calls)
      error, answer = self._pipe.recv()
    except (EOFError, OSError):
      self._process.join()
      status = self._process.exitcode
      raise WorkerError(f'the process ended ({status})') from None
    if error:
      raise WorkerError(error)
    return answer


def _serve(pipe, source, spec, cores):
  """Builds a program in the worker, then answers until the pipe closes.

  A request is a number of calls, answered with their seconds, or 0, answered
  with the peak memory. An answer begins with '' or the error that ended the
  worker.
  """
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C closes the pipe, too
  os.dup2(2, 1)  # frameworks print; standard output is for the tables
  if cores:
    os.sched_setaffinity(0, cores)
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
      os.environ[name] = str(len(cores))
  os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'  # processes share a GPU
  with contextlib.ExitStack() as stack:
    try:
      before = time.perf_counter()
      program = _builder(source)(spec)
      stack.callback(program.close)
      program.run(1)
      seconds = time.perf_counter() - before
      # Excludes compilation from the process's peak, where Linux allows it.
      with contextlib.suppress(OSError):
        pathlib.Path('/proc/self/clear_refs').write_text('5')
      pipe.send(('', {**program.facts, 'build_seconds': seconds}))
      while True:
        calls = pipe.recv()
        pipe.send(('', _timed(program, calls) if calls else peak(program)))
    except EOFError:
      return
    except Exception as error:
      lines = str(error).strip().splitlines() or ['']
      pipe.send((f'{type(error).__name__}: {lines[0]}', None))


def _builder(source):
  if source == _JAX:
    return importlib.import_module(source).build
  os.environ['JAX_PLATFORMS'] = 'cpu'  # JAX only compares weights here
  sys.path.insert(0, str(pathlib.Path(source).parent))
  return runpy.run_path(source)['build']


def _timed(program, calls):
  program.ready()
  before = time.perf_counter()
  program.run(calls)
  return time.perf_counter() - before


def peak(program: Program) -> tuple[int | None, str]:
  """Returns the peak bytes, and whether they are the device's or process's."""
  if program.device_peak:
    return program.device_peak(), 'device'
  try:
    status = pathlib.Path('/proc/self/status').read_text()
  except OSError:
    return None, 'not measured'
  _, _, rest = status.partition('VmHWM:')  # `VmHWM:   1234 kB`
  return int(rest.split()[0]) * 1024, 'process'


def choose_cores(threads: int | None) -> list[int] | None:
  """Returns the numbers of `threads` cores; None for None.

  Raises:
    UserError: If there are too few, or the system cannot choose cores.
  """
  if threads is None:
    return None
  if not hasattr(os, 'sched_setaffinity'):
    raise UserError('--threads works on Linux only')
  allowed = sorted(os.sched_getaffinity(0))
  if threads > len(allowed):
    raise UserError(f'--threads is {threads}: there are {len(allowed)} cores')
  return allowed[:threads]
