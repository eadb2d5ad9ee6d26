"""The one exception that is meant for the person at the terminal."""


class UserError(Exception):
  """Something the user can mend: one line saying what, where, and what to do.

  The commands print it, and errors of the operating system, as
  `gswinrmt: MESSAGE` and exit with status 2; any other exception is a defect of
  this package and keeps its traceback.
  """
