"""The outside of a worker: starts the process and asks it."""

from collections.abc import Mapping, Sequence
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import gswinrmt_jax
from gswinrmt_jax.errors import UserError

_ROOT = pathlib.Path(gswinrmt_jax.__file__).resolve().parent.parent
_JAX = ('-m', 'gswinrmt_jax.benchmark.jax_arms')
_TORCH = _ROOT / 'benchmarks' / 'torch_arms.py'
_SAID = 200  # characters of a dead worker's last words
_END = 5.0  # seconds in which a worker that is told to end does so


class ArmError(Exception):
  """A program could not be built or run: one line saying why."""


def pinned(threads: int | None) -> list[int] | None:
  """Returns the cores that so many threads get, None for no choice.

  Raises:
    UserError: If there are not as many, or they cannot be chosen here.
  """
  if threads is None:
    return None
  if not hasattr(os, 'sched_setaffinity'):
    raise UserError('--threads needs Linux, which lets cores be chosen')
  allowed = sorted(os.sched_getaffinity(0))
  if threads > len(allowed):
    raise UserError(f'--threads is {threads}: there are {len(allowed)} cores')
  return allowed[:threads]


class Process:
  """A worker with its program; `timing.Arm`.

  Attributes:
    facts: What the worker told about its program.
  """

  def __init__(self, spec: Mapping[str, Any], cores: Sequence[int] | None):
    """Starts the worker and has the program built and run once.

    Args:
      spec: For `jax_arms.build`, or with a 'peer' for `torch_arms.build`.
      cores: That it may use; None for all.

    Raises:
      ArmError: If it could not be.
    """
    command = [sys.executable, *_JAX]
    if spec.get('peer'):
      if not _TORCH.exists():
        raise ArmError('peers need the source tree: there is no benchmarks/')
      command = [sys.executable, str(_TORCH)]
    self._said = tempfile.TemporaryFile('w+')
    before = os.sched_getaffinity(0) if cores else None
    if cores:  # Inherited, so that it holds before any library starts.
      os.sched_setaffinity(0, cores)
    try:
      self._process = subprocess.Popen(
          command,
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=self._said,
          text=True,
          env=_worker_environment(spec, cores),
      )
    finally:
      if cores:
        os.sched_setaffinity(0, before)
    try:
      self.facts = self._ask(spec=spec)['facts']
    except BaseException:
      self.close()
      raise

  def run(self, calls: int) -> float:
    """Runs the program so often; returns the seconds."""
    return self._ask(calls=calls)['seconds']

  def peak(self) -> tuple[int | None, str]:
    """Returns the peak memory since it was built, and whose it is."""
    answer = self._ask(peak=True)
    return answer['bytes'], answer['of']

  def close(self) -> None:
    """Ends the worker, which ends what it has begun, unless it takes long."""
    with contextlib.suppress(BrokenPipeError):  # it ended before
      self._process.stdin.close()
    try:
      self._process.wait(_END)
    except BaseException as error:
      self._process.terminate()
      self._process.wait()
      if not isinstance(error, subprocess.TimeoutExpired):
        raise
    finally:
      self._process.stdout.close()
      self._said.close()

  def _ask(self, **question):
    try:
      print(json.dumps(question), file=self._process.stdin, flush=True)
      line = self._process.stdout.readline()
    except BrokenPipeError:
      line = ''
    if not line:
      self._said.seek(0)
      said = self._said.read().strip().splitlines() or ['it said nothing']
      status = self._process.wait()
      raise ArmError(f'the process ended ({status}): {said[-1][-_SAID:]}')
    answer = json.loads(line)
    if 'error' in answer:
      raise ArmError(answer['error'])
    return answer


def environment() -> dict[str, str]:
  """Returns that of this process, in which this package is found."""
  paths = [str(_ROOT), os.environ.get('PYTHONPATH')]
  return {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, paths))}


def _worker_environment(spec, cores):
  variables = environment()
  # Several processes share a card.
  variables['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
  if spec.get('peer'):
    variables['JAX_PLATFORMS'] = 'cpu'  # compares weights, no more
  if cores:
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
      variables[name] = str(len(cores))
  return variables
