"""The inside of a process that holds one program to be timed.

One program to a process: its peak memory is then its own, and two frameworks
never share threads. The process reads a line of JSON, answers with one, and
ends with its input:

    {"spec": {...}}    builds the program     {"facts": {...}}
    {"calls": 10}      runs it so often       {"seconds": 1.5}
    {"peak": true}     memory since built     {"bytes": 123, "of": "device"}

Any answer may be {"error": "one line"} instead, after which it is over. Nothing
here imports a framework.
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import time
from typing import Any

Spec = Mapping[str, Any]


def _nothing():
  pass


@dataclasses.dataclass
class Program:
  """What a worker times.

  Attributes:
    run: Does the work so often and returns when it is done, not when it is
      under way.
    facts: About it, as JSON can hold them.
    device_peak: Returns the device's peak bytes; None where there is no such
      count, and the process's peak is taken.
    ready: Called before each timing, outside of it.
    close: Called at the end.
  """

  run: Callable[[int], object]
  facts: dict[str, Any]
  device_peak: Callable[[], int] | None = None
  ready: Callable[[], object] = _nothing
  close: Callable[[], object] = _nothing


def serve(build: Callable[[Spec], Program]) -> None:
  """Answers what is asked on the standard input until it ends.

  Args:
    build: Makes the program of a spec; what it raises is told as the error.
  """
  # Frameworks print; the answers have a stream of their own.
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  with contextlib.ExitStack() as stack:
    program = None
    for line in sys.stdin:
      asked = json.loads(line)
      try:
        if 'spec' in asked:
          before = time.perf_counter()
          program = build(asked['spec'])
          stack.callback(program.close)
          answer = {'facts': _begin(program, before)}
        elif 'calls' in asked:
          answer = {'seconds': _timed(program, asked['calls'])}
        else:
          answer = _peak(program)
      except Exception as error:
        lines = str(error).strip().splitlines() or ['']
        answer = {'error': f'{type(error).__name__}: {lines[0]}'}
      print(json.dumps(answer), file=answers, flush=True)
      if 'error' in answer:
        return


def _begin(program, before):
  """Runs it once; returns its facts, and the seconds since `before`."""
  program.run(1)
  seconds = time.perf_counter() - before
  _forget_peak()
  return {**program.facts, 'build_seconds': seconds}


def _timed(program, calls):
  program.ready()
  before = time.perf_counter()
  program.run(calls)
  return time.perf_counter() - before


def _peak(program):
  if program.device_peak:
    return {'bytes': program.device_peak(), 'of': 'device'}
  try:
    status = pathlib.Path('/proc/self/status').read_text()
    return {'bytes': _high_water(status), 'of': 'process'}
  except (OSError, ValueError):
    return {'bytes': None, 'of': 'not measured'}


def _high_water(status):
  """Reads the line `VmHWM:   1234 kB`."""
  _, found, rest = status.partition('VmHWM:')
  if not found:
    raise ValueError('no VmHWM')
  return int(rest.split()[0]) * 1024


def _forget_peak():
  """Has Linux count the peak from here on: compiling takes more than running.

  Where that is not allowed, the peak is that of compiling as well.
  """
  try:
    pathlib.Path('/proc/self/clear_refs').write_text('5')
  except OSError:
    return
