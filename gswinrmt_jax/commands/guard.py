"""Prints errors that users can fix as one line, and ends the process."""

from collections.abc import Callable, Iterator
import contextlib
import multiprocessing
import os
import re
import signal
import sys
from typing import NoReturn

from gswinrmt_jax import terminal
from gswinrmt_jax.errors import explain, interruption, RunError, Stopped


def exits(main: Callable[[], int]) -> NoReturn:
  """Runs the main function of a program, and ends the process with its status.

  After a failure, the regular shutdown of Python is skipped: it would wait for
  XLA's ongoing compilations, or crash when a thread of XLA still compiles for a
  device that is gone. What it would do for others is done here: other hosts are
  left in order, and processes that were started are ended.
  """
  if sys.stdout:  # Names may have characters that the terminal lacks.
    sys.stdout.reconfigure(errors='backslashreplace')
  status = main()
  if not status:
    sys.exit()
  try:
    if 'jax' in sys.modules:
      sys.modules['jax'].distributed.shutdown()
    for child in multiprocessing.active_children():
      child.terminate()
    for stream in filter(None, (sys.stdout, sys.stderr)):
      stream.flush()
  finally:  # The reader of a pipe may be gone, so that flushing fails.
    os._exit(status)


class Outcome:
  """How a command ended: `status` is its exit status."""

  status: int = 0


@contextlib.contextmanager
def reported(interrupted: str = 'interrupted') -> Iterator[Outcome]:
  """Prints errors of the code inside and records the exit status.

  A `UserError`, an error of the operating system or a lack of memory is printed
  as `gswinrmt: MESSAGE` and gives 2, or 1 if it ended a run that had begun.
  Ctrl-C prints `interrupted` and gives 130. A signal n that ended a run in
  order gives 128 + n. If the reader of the output is gone, as in `| head`,
  nothing is printed and the status is that of SIGPIPE.

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
    if sys.stdout:
      sys.stdout.flush()
  except BrokenPipeError:
    outcome.status = 128 + signal.SIGPIPE
    # Buffered text is written again at exit.
    with contextlib.suppress(OSError, ValueError):
      nowhere = os.open(os.devnull, os.O_WRONLY)
      os.dup2(nowhere, sys.stdout.fileno())
      os.close(nowhere)
  except (Exception, KeyboardInterrupt) as error:
    message, signalled = explain(error), interruption(error)
    if message:
      outcome.status = 1 if isinstance(error, RunError) else 2
      complain(message)
    elif isinstance(signalled, Stopped):
      outcome.status = 128 + signalled.signal
      complain(str(signalled))
    elif signalled:
      outcome.status = 130
      _print(f'\ngswinrmt: {interrupted}')
    else:
      raise


def guarded(command: Callable[[], int | None]) -> int:
  """Runs a command as `reported` does; returns its status, 0 for None."""
  with reported() as outcome:
    outcome.status = command() or 0
  return outcome.status


def complain(message: str) -> int:
  """Prints `gswinrmt: MESSAGE` as one line; returns 2, the status of errors."""
  # Blanks stay: they may be those of a file's name.
  line = re.sub(r'\s*\n\s*', ' ', message.strip())
  _print(f'gswinrmt: {terminal.printable(line)}')
  return 2


def _print(text):
  # The terminal may be gone; the exit status still tells what happened.
  with contextlib.suppress(OSError):
    if sys.stderr is not None:  # else it would go to stdout
      print(text, file=sys.stderr, flush=True)
