"""One clear line for what the user can mend, and the end of the process."""

import atexit
from collections.abc import Callable
import os
import sys
from typing import NoReturn

from gswinrmt_jax.errors import interruption, RunError, Stopped, UserError


def exits(main: Callable[[], int]) -> NoReturn:
  """Runs the main function of a program, and ends the process with its status.

  If it has not done what it was to do, Python does not take itself apart: it
  would wait for what XLA still compiles, or crash under it. What is registered
  to be called at the end is called.

  Args:
    main: Returns the status; above 128, a signal ended it.
  """
  status = main()
  if not status:
    sys.exit()
  try:
    # Python calls them only when the threads of executors have ended.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
  finally:  # Nobody may read any more.
    os._exit(status)


def guarded(
    command: Callable[[], int | None], *, interrupted: str = 'interrupted'
) -> int:
  """Runs a command and returns its exit status.

  A `UserError`, or one of the operating system's, is printed as
  `gswinrmt: MESSAGE` and gives 2, as does the end of the memory, or 1 if a run
  began and could not go on; Ctrl-C gives 130, SIGTERM that was waited for 143.

  Args:
    command: What to run; returns the status, None for 0.
    interrupted: What to say after Ctrl-C.
  """
  from absl import logging

  # Orbax warns of settings that are as they should be, and logs with their
  # tracebacks errors that it raises as well.
  logging.set_verbosity(logging.FATAL)
  try:
    status = command()
  except RunError as error:
    return complain(str(error), status=1)
  except (UserError, OSError) as error:
    return complain(str(error))
  except MemoryError as error:
    return complain(f'there is not enough memory: {error}')
  except RuntimeError as error:  # JAX's own class is derived from it.
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    return complain(
        'the device has not enough memory: lower config.batch_size (or '
        'config.eval_batch_size, --batch-size)'
    )
  except (KeyboardInterrupt, SystemError) as error:
    signalled = interruption(error)
    if not signalled:
      raise
    if isinstance(signalled, Stopped):
      return complain(str(signalled), status=128 + signalled.signal)
    print(f'\ngswinrmt: {interrupted}', file=sys.stderr)
    return 130
  return status or 0


def complain(message: str, *, status: int = 2) -> int:
  """Prints `gswinrmt: MESSAGE` as one line and returns the status."""
  print('gswinrmt:', ' '.join(message.split()), file=sys.stderr)
  return status
