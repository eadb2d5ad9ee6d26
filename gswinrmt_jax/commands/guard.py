"""One clear line for what the user can mend."""

from collections.abc import Callable
import sys

from gswinrmt_jax.errors import UserError


def guarded(command: Callable[[], None]) -> int:
  """Runs a command and returns its exit status.

  A `UserError` is printed as `gswinrmt: MESSAGE`, status 2; Ctrl-C gives 130.
  """
  try:
    command()
  except UserError as error:
    message = ' '.join(str(error).split())
    print(f'gswinrmt: {message}', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('\ngswinrmt: interrupted', file=sys.stderr)
    return 130
  return 0
