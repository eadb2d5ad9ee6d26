"""Exceptions whose messages are for the user at the terminal."""

from collections.abc import Iterable, Iterator
import contextlib
import difflib
import os
import sys

_NO_CUDNN = 'DNN library initialization failed'  # XLA's
_HELD = (
    'if another process of JAX holds the GPU, set '
    'XLA_PYTHON_CLIENT_PREALLOCATE=false for both'
)


class UserError(Exception):
  """An error the user can fix: one line saying what, where, and what to do.

  Commands print it, like errors of the operating system, as `gswinrmt: MESSAGE`
  and exit with status 2. Any other exception is a bug in this package, or in a
  recipe file of the user, and keeps its traceback.
  """


class RunError(UserError):
  """An error, such as a full disk, after a run has begun: exit status 1."""


class Stopped(KeyboardInterrupt):
  """A signal ended the run, with everything saved; has a one-line message.

  Attributes:
    signal: Number n of the signal; the exit status is 128 + n.
  """

  def __init__(self, message: str, signal: int):
    super().__init__(message)
    self.signal = signal


def explain(error: BaseException) -> str:
  """Returns the message for an error that the user can fix, '' for a bug."""
  if isinstance(error, OSError) and error.filename and error.strerror:
    return f'{error.filename}: {error.strerror}'
  if isinstance(error, (UserError, OSError)):
    return str(error)
  if isinstance(error, MemoryError):
    return f'there is not enough memory{": " * bool(str(error))}{error}'
  # JAX's error class is derived from RuntimeError.
  if isinstance(error, RuntimeError) and _NO_CUDNN in str(error):
    return (
        'cuDNN cannot start, as the lines of XLA above explain: install the '
        f'cuDNN that JAX needs (the extra cuda12 or cuda13); or, {_HELD}'
    )
  if isinstance(error, RuntimeError) and 'RESOURCE_EXHAUSTED' in str(error):
    return (
        'the device does not have enough memory: lower the batch size '
        '(config.batch_size, config.eval_batch_size, --batch-size) or the size '
        f'of images; {_HELD}'
    )
  platforms = os.environ.get('JAX_PLATFORMS', '')
  if platforms and _has_no_backend(error):
    return (
        f"JAX_PLATFORMS is '{platforms}', which JAX cannot use here: unset it, "
        'or install what it needs (NVIDIA GPU: the extra cuda12 or cuda13)'
    )
  return ''


def _has_no_backend(error):
  """Whether JAX cannot open the platforms that it was told to use.

  JAX removes its own frames from the error, so the platforms are tried again.
  """
  if 'jax' not in sys.modules:
    return False
  if not isinstance(error, (RuntimeError, AssertionError)):
    return False
  try:
    sys.modules['jax'].devices()
  except (RuntimeError, AssertionError):
    return True
  return False


def did_you_mean(word: str, known: Iterable[str]) -> str:
  """Returns ` (did you mean NAME?)` for a misspelt name, '' without a match."""
  near = difflib.get_close_matches(word, known, n=1)
  return f' (did you mean {near[0]}?)' if near else ''


@contextlib.contextmanager
def run_has_begun() -> Iterator[None]:
  """Turns errors that the user can fix into `RunError`.

  The exit status then shows a program that starts runs whether a run did not
  begin (2) or ended with something to resume from (1).
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
  """Returns the exception of a signal if the error is one or wraps one.

  C code interrupted by a signal, such as NumPy's, raises `SystemError` from it.
  """
  cause = error.__cause__ if isinstance(error, SystemError) else error
  return cause if isinstance(cause, KeyboardInterrupt) else None
