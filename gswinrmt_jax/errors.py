"""The exceptions that are meant for the person at the terminal."""


class UserError(Exception):
  """Something the user can mend: one line saying what, where, and what to do.

  The commands print it, and errors of the operating system, as
  `gswinrmt: MESSAGE` and exit with status 2; any other exception is a defect of
  this package and keeps its traceback.
  """


class RunError(UserError):
  """What ended a run that was right to begin, such as a full disk: status 1."""


class Stopped(KeyboardInterrupt):
  """A signal asked to end, and what had to be saved is; one line, as above.

  Attributes:
    signal: Its number n; the exit status is 128 + n.
  """

  def __init__(self, message: str, signal: int):
    super().__init__(message)
    self.signal = signal


def interruption(error: BaseException) -> KeyboardInterrupt | None:
  """Returns the exception of a signal, if the error is one or hides one.

  Code in C that a signal comes upon, as NumPy's, raises `SystemError` from it.
  """
  behind = error.__cause__ if isinstance(error, SystemError) else error
  return behind if isinstance(behind, KeyboardInterrupt) else None
