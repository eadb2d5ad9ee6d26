"""A lock on what one process may work at; it ends with the process."""

from collections.abc import Iterator
import contextlib
import fcntl
import os
import pathlib
import socket

from gswinrmt_jax.errors import UserError

_FILE = '.lock'


@contextlib.contextmanager
def claimed(path: pathlib.Path) -> Iterator[str | None]:
  """Holds a lock file, which says who does, or finds that another process does.

  The lock is the operating system's (flock): however a process ends, by kill -9
  too, its locks are free. The file is removed at the end; one that is left over
  locks nothing. Where the file system has no locks, nothing is locked.

  Args:
    path: The file; its folder exists.

  Yields:
    None if it is ours, else who has it, 'process 12 on HOST'.
  """
  with contextlib.ExitStack() as stack:
    file, ours = _open_locked(path, stack)
    if not ours:
      yield file.read().strip() or 'another process'
      return
    file.truncate(0)
    file.write(f'process {os.getpid()} on {socket.gethostname()}\n')
    file.flush()
    # Removed while it is still held; see `_open_locked`.
    stack.callback(path.unlink, missing_ok=True)
    yield None


@contextlib.contextmanager
def of_run(folder: pathlib.Path) -> Iterator[None]:
  """Holds the lock of a run folder, which is made if it is not there.

  Raises:
    UserError: If another process trains there, or it cannot be written to.
  """
  missing = not folder.exists()
  with contextlib.ExitStack() as stack:
    try:
      folder.mkdir(parents=True, exist_ok=True)
      if missing:  # Unless something comes into it: then it stays.
        stack.callback(_remove_if_empty, folder)
      holder = stack.enter_context(claimed(folder / _FILE))
    except OSError as error:
      raise UserError(
          f'cannot write to {folder}: {error.strerror or error}; choose '
          'another --workdir'
      ) from error
    if holder:
      raise UserError(
          f'{folder} is being trained by {holder}: wait for it, or choose '
          'another --workdir'
      )
    yield


def _open_locked(path, stack):
  """Returns the open file, and whether its lock is ours."""
  while True:
    # Not emptied: it says who holds it.
    file = stack.enter_context(path.open('a+'))
    file.seek(0)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      return file, False
    except OSError:
      return file, True  # a file system without locks
    # Whoever held it may have removed it since it was opened here.
    with contextlib.suppress(FileNotFoundError):
      if os.path.samestat(os.fstat(file.fileno()), path.stat()):
        return file, True
    file.close()


def _remove_if_empty(folder):
  with contextlib.suppress(OSError):
    folder.rmdir()
