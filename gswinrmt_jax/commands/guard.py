"""Prints errors that users can fix as one line, and ends the process."""

import atexit
from collections.abc import Callable, Iterator
import contextlib
import os
import sys
from typing import NoReturn

from gswinrmt_jax.errors import explain, interruption, RunError, Stopped


def exits(main: Callable[[], int]) -> NoReturn:
  """Runs the main function of a program, and ends the process with its status.

  After a failure, the regular shutdown of Python is skipped: it would wait for
  XLA's ongoing compilations, or crash. Exit functions are still called.

  Args:
    main: Returns the exit status; above 128, a signal ended it.
  """
  status = main()
  if not status:
    sys.exit()
  try:
    _keep_backends()
    # Python would call them only after the threads of executors have ended.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
  finally:  # The reader of a pipe may be gone, so that flushing fails.
    os._exit(status)


def _keep_backends():
  """Keeps JAX's devices open at exit, and disconnects only from other hosts.

  A thread of XLA may still compile, and would crash without its device.
  """
  clean_up = getattr(sys.modules.get('jax._src.api'), 'clean_up', None)
  if clean_up:
    atexit.unregister(clean_up)
    sys.modules['jax'].distributed.shutdown()


class Outcome:
  """How a command ended.

  Attributes:
    status: The exit status.
  """

  status: int = 0


@contextlib.contextmanager
def reported(interrupted: str = 'interrupted') -> Iterator[Outcome]:
  """Prints errors of the code inside and records the exit status.

  A `UserError`, an error of the operating system or a lack of memory is printed
  as `gswinrmt: MESSAGE` and gives 2, or 1 if it ended a run that had begun.
  Ctrl-C gives 130; a signal n that ended a run in order gives 128 + n.

  Args:
    interrupted: Message after Ctrl-C.

  Yields:
    The outcome, whose status is final at the end.
  """
  from absl import logging

  # Orbax warns about correct settings, and logs errors with their tracebacks
  # although it also raises them.
  logging.set_verbosity(logging.FATAL)
  outcome = Outcome()
  try:
    yield outcome
  except Exception as error:
    message, signalled = explain(error), interruption(error)
    if not message and not signalled:
      raise
    if message:
      status = 1 if isinstance(error, RunError) else 2
      outcome.status = complain(message, status=status)
    else:
      outcome.status = _end(signalled, interrupted)
  except KeyboardInterrupt as signalled:
    outcome.status = _end(signalled, interrupted)


def guarded(
    command: Callable[[], int | None], *, interrupted: str = 'interrupted'
) -> int:
  """Runs a command as `reported` does and returns its exit status.

  Args:
    command: Function to run; returns the status, None for 0.
    interrupted: Message after Ctrl-C.
  """
  with reported(interrupted) as outcome:
    outcome.status = command() or 0
  return outcome.status


def complain(message: str, *, status: int = 2) -> int:
  """Prints `gswinrmt: MESSAGE` as one line and returns the status."""
  _print(f'gswinrmt: {" ".join(message.split())}')
  return status


def _end(signalled, interrupted):
  if isinstance(signalled, Stopped):
    return complain(str(signalled), status=128 + signalled.signal)
  _print(f'\ngswinrmt: {interrupted}')
  return 130


def _print(text):
  # The terminal may be gone; the exit status still tells what happened.
  with contextlib.suppress(OSError):
    print(text, file=sys.stderr, flush=True)
