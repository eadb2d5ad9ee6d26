"""Exceptions whose messages are for the user at the terminal."""

from collections.abc import Iterable, Iterator
import contextlib
import difflib


class UserError(Exception):
  """Something the user can mend: one line saying what, where, and what to do.

  The commands print it, and errors of the operating system, as
  `gswinrmt: MESSAGE` and exit with status 2; any other exception is a defect of
  this package and keeps its traceback.
  """


class RunError(UserError):
  """An error that ended a run after it had begun, a full disk: status 1."""


class Stopped(KeyboardInterrupt):
  """A signal asked to end, and what had to be saved is; one line, as above.

  Attributes:
    signal: Its number n; the exit status is 128 + n.
  """

  def __init__(self, message: str, signal: int):
    super().__init__(message)
    self.signal = signal


def explain(error: Exception) -> str:
  """Returns the line for an error that a user can mend, '' for a defect."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    return f'{error.filename}: {error.strerror}'
  if isinstance(error, (UserError, OSError)):
    return str(error)
  if isinstance(error, MemoryError):
    return f'there is not enough memory: {error}'
  # JAX's own class is derived from RuntimeError.
  if isinstance(error, RuntimeError) and 'RESOURCE_EXHAUSTED' in str(error):
    return (
        'the device has not enough memory: lower config.batch_size (or '
        'config.eval_batch_size, --batch-size)'
    )
  return ''


def did_you_mean(word: str, known: Iterable[str]) -> str:
  """Returns ` (did you mean NAME?)` for a misspelt name, '' if none is near."""
  near = difflib.get_close_matches(word, known, n=1)
  return f' (did you mean {near[0]}?)' if near else ''


@contextlib.contextmanager
def run_has_begun() -> Iterator[None]:
  """Turns errors that a user can mend into `RunError`.

  A program that starts runs thereby knows from the exit status whether a run
  did not begin (2) or ended with something to resume from (1).
  """
  try:
    yield
  except RunError:
    raise
  except Exception as error:
    message = explain(error)
    if not message:
      raise
    raise RunError(message) from error


def interruption(error: BaseException) -> KeyboardInterrupt | None:
  """Returns the exception of a signal, if the error is one or hides one.

  C code that a signal interrupts, as NumPy's, raises `SystemError` from it.
  """
  cause = error.__cause__ if isinstance(error, SystemError) else error
  return cause if isinstance(cause, KeyboardInterrupt) else None
