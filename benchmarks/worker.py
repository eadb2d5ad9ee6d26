"""Runs each timed program in a process of its own.

The peak memory is then that of the program, two frameworks never share threads,
and a program may have its own environment variables or its own checkout of this
repository. This module imports no framework, so that a process can choose its
cores first.

A process gets its spec as JSON and answers in JSON, a line at a time: first
with facts, then each number of calls with their seconds, and 0 with the peak
memory.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time
from typing import Any

from gswinrmt_jax.errors import UserError

Spec = Mapping[str, Any]

_GRACE = 5.0  # seconds that a worker has to end by itself
# Prefixes of environment variables that affect speed.
_VARIABLES = (
    *('LD_PRELOAD', 'MALLOC_', 'MIMALLOC_', 'GSWINRMT_'),
    *('XLA_', 'JAX_', 'OMP_', 'MKL_'),
    *('NVIDIA_TF32', 'TF_CUDNN', 'CUBLAS_'),
)


@dataclasses.dataclass
class Program:
  """A program to be timed, inside its process.

  Attributes:
    run: Calls the program the given number of times and waits for the results.
    facts: About the program; JSON-serialisable.
    device_peak: Returns the device's peak bytes; None to take the process's.
  """

  run: Callable[[int], object]
  facts: dict[str, Any]
  device_peak: Callable[[], int] | None = None


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
      spec: For `build` of jax_programs.py or, with a 'peer', of
        torch_programs.py. 'env' has environment variables; 'checkout' is a
        folder whose package is imported instead of this one.
      cores: The cores it may use; None for all.

    Raises:
      WorkerError: If the program cannot be built or called.
    """
    # Not needed in the worker, whose checkout may be older than this module.
    from gswinrmt_jax import allocator

    # Processes share a GPU.
    env = {**os.environ, 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
    env |= spec.get('env', {})
    if 'peer' not in spec and allocator.helps(env):  # as commands do
      env |= allocator.variables(env)
    if 'checkout' in spec:
      path = (spec['checkout'], env.get('PYTHONPATH', ''))
      env['PYTHONPATH'] = os.pathsep.join(filter(None, path))
    if cores:
      threads = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS')
      env |= dict.fromkeys(threads, f'{len(cores)}')
    self._process = subprocess.Popen(
        [sys.executable, __file__, json.dumps([spec, cores])],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
      self.facts = self._answer()
    except BaseException:
      self.close()
      raise

  def run(self, calls: int) -> float:
    """Calls the program `calls` times and returns the seconds."""
    return self._answer(calls)

  def peak(self) -> tuple[int, str]:
    """Returns the peak bytes, and 'device' or 'process', whose peak it is."""
    return tuple(self._answer(0))

  def close(self) -> None:
    """Ends the process, after a few seconds by a signal."""
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(_GRACE)
    self._process.terminate()
    self._process.wait()
    self._process.stdout.close()

  def _answer(self, calls=None):
    with contextlib.suppress(OSError):
      if calls is not None:
        print(calls, file=self._process.stdin, flush=True)
    line = self._process.stdout.readline()
    if not line:
      raise WorkerError(f'the process ended ({self._process.wait()})')
    error, answer = json.loads(line)
    if error:
      raise WorkerError(error)
    return answer


def choose_cores(threads: int | None) -> list[int] | None:
  """Returns the numbers of `threads` cores; None for None.

  Raises:
    UserError: If there are too few.
  """
  if threads is None:
    return None
  allowed = sorted(os.sched_getaffinity(0))
  if not 1 <= threads <= len(allowed):
    raise UserError(f'--threads is {threads}: there are {len(allowed)} cores')
  return allowed[:threads]


def peak(program: Program) -> tuple[int, str]:
  """Returns the peak bytes, and whether they are the device's or process's."""
  if program.device_peak:
    return program.device_peak(), 'device'
  status = pathlib.Path('/proc/self/status').read_text()
  _, _, rest = status.partition('VmHWM:')  # `VmHWM:   1234 kB`
  return int(rest.split()[0]) * 1024, 'process'


def serve(spec: Spec, cores: Sequence[int] | None) -> None:
  """Builds a program in its process, then answers until the input ends.

  An answer is the error that ended the worker, or '', and a value.
  """
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the input, too
  answers = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)  # frameworks print
  if cores:
    os.sched_setaffinity(0, cores)
  try:
    before = time.perf_counter()
    program = _build(_with_tuples(spec))
    program.run(1)
    seconds = time.perf_counter() - before
    # Excludes compilation from the process's peak, where Linux allows it.
    with contextlib.suppress(OSError):
      pathlib.Path('/proc/self/clear_refs').write_text('5')
    facts = {**program.facts, 'build_seconds': seconds}
    facts['environment'] = {
        # Where a library lies, such as LD_PRELOAD, is of this machine alone.
        name: value.rpartition('/')[2] if value.startswith('/') else value
        for name, value in os.environ.items()
        if name.startswith(_VARIABLES)
    }
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    program.run(1)
    facts['page_faults'] = (
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    )
    print(json.dumps(['', facts]), file=answers)
    for line in sys.stdin:
      calls = int(line)
      found = _seconds(program, calls) if calls else peak(program)
      print(json.dumps(['', found]), file=answers)
  except Exception as error:
    lines = str(error).strip().splitlines() or ['']
    said = f'{type(error).__name__}: {lines[0]}'
    print(json.dumps([said, None]), file=answers)


def _with_tuples(value):
  """Returns a spec as it was before JSON, which has no tuples."""
  if isinstance(value, dict):
    return {name: _with_tuples(inner) for name, inner in value.items()}
  return tuple(value) if isinstance(value, list) else value


def _build(spec):
  if not spec.get('peer'):
    import jax_programs

    return jax_programs.build(spec)
  os.environ['JAX_PLATFORMS'] = 'cpu'  # JAX only compares weights here
  import torch_programs

  return torch_programs.build(spec)


def _seconds(program, calls):
  before = time.perf_counter()
  program.run(calls)
  return time.perf_counter() - before


if __name__ == '__main__':
  serve(*json.loads(sys.argv[1]))
