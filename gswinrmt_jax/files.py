"""Files and folders written whole or not at all, JSON, and a lock."""

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import resource
import secrets
import shutil
import socket
from typing import Any, IO

from gswinrmt_jax.errors import UserError

_PART, _GONE, _REPLACED = '.part', '.gone', '.replaced'


class LockedError(Exception):
  """Another process holds a lock; the message says which one."""


@contextlib.contextmanager
def replaced(
    path: pathlib.Path, *, folder: bool = False
) -> Iterator[pathlib.Path]:
  """Yields a temporary path that replaces `path` at the end.

  The caller writes a file or creates a folder there: `.NAME.RANDOM.part`, next
  to `path`, so that renaming it does not cross file systems. On return,
  contents and new name are on disk. If writing fails, the previous file stays
  and the temporary path is removed.

  A file replaces an existing file. Replacing a folder that is not empty raises
  `OSError`, unless `folder` is true: it is then removed last. If the process is
  killed before, `remove_leftovers` completes what is left.
  """
  part, old = _beside(path, _PART), None
  try:
    yield part
    # Without syncing, the rename may reach the disk before the contents.
    for written in (*part.rglob('*'), part):
      sync(written)
    if folder and path.exists():
      old = _beside(path, _REPLACED)
      path.rename(old)
    try:
      os.replace(part, path)
    except BaseException:
      if old:
        old.rename(path)
      raise
    sync(path.parent)
    if old:
      with contextlib.suppress(OSError):
        _remove(old)
  except BaseException as error:
    with contextlib.suppress(OSError):  # Only the first error is reported.
      _remove(part)
    is_coded = isinstance(error, OSError) and error.strerror
    if is_coded and not error.filename:  # A full disk does not say where.
      error.filename = str(path)
    raise


def remove(folder: pathlib.Path) -> None:
  """Removes a folder; a killed process leaves no half-removed folder."""
  gone = _beside(folder, _GONE)
  folder.rename(gone)
  _remove(gone)


def remove_leftovers(folder: pathlib.Path) -> list[OSError]:
  """Removes what processes killed in `replaced` or `remove` left in a folder.

  A folder that was about to be replaced gets its name back. Hold the folder's
  lock: no other process may write there meanwhile.

  Returns:
    The errors of those that cannot be removed.
  """
  errors = []
  for old in folder.glob(f'.*{_REPLACED}'):
    path = folder / old.name[1:].rsplit('.', 2)[0]
    if not path.exists():
      old.rename(path)
  for suffix in (_PART, _GONE, _REPLACED):
    for path in folder.glob(f'.*{suffix}'):
      try:
        _remove(path)
      except OSError as error:
        errors.append(error)
  return errors


def sync(path: pathlib.Path) -> None:
  """Waits until a file, or a folder's list of names, is on disk.

  Some shared folders cannot do so for folders: then nothing is waited for.
  """
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    cannot = error.errno in (errno.EINVAL, errno.EBADF, errno.ENOTSUP)
    if not (cannot and path.is_dir()):
      raise
  finally:
    os.close(descriptor)


def check_can_write(path: pathlib.Path) -> None:
  """Refuses a file that cannot be written, and leaves no trace.

  Call it before the work whose result the file will hold.

  Raises:
    UserError: If `path` is a folder or a device, or the nearest folder above it
      that exists cannot be written to.
  """
  if path.exists() and not path.is_file():  # which `replaced` would replace
    what = 'a folder' if path.is_dir() else 'not a regular file'
    raise UserError(f'cannot write {path}: it is {what}')
  there = next(place for place in path.parents if os.path.lexists(place))
  part = _beside(there / path.name, _PART)
  try:
    part.touch()
    part.unlink()
  except NotADirectoryError:
    raise UserError(f'cannot write {path}: a file is in the way') from None
  except OSError as error:
    raise UserError(f'cannot write {path}: {error.strerror}') from error


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a text file (UTF-8), whole or not at all.

  Bytes of a path that are not UTF-8 are written as escapes.
  """
  with replaced(path) as part:
    part.write_text(text, 'utf-8', 'backslashreplace')


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file, whole or not at all."""
  write_text(path, json.dumps(value, indent=2) + '\n')


def read_json(path: pathlib.Path) -> Any:
  """Returns the value in a JSON file.

  Raises:
    FileNotFoundError: If there is no such file.
    UserError: If it cannot be read.
  """
  try:
    return json.loads(path.read_bytes())
  except FileNotFoundError:
    raise
  # RecursionError: brackets are nested too deeply.
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f'{path} cannot be read: {error}') from error


def user_cache() -> pathlib.Path:
  """Returns the user's cache folder for this package."""
  root = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  try:
    return pathlib.Path(root).expanduser() / 'gswinrmt_jax'
  except RuntimeError as error:
    raise UserError(f'{root}: there is no home; set XDG_CACHE_HOME') from error


def allow_open(count: int) -> None:
  """Lets this process open `count` files and 256 more, if the system allows.

  The soft limit is often 1,024.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  needed = count + 256
  if soft != resource.RLIM_INFINITY and soft < needed:
    most = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    # A sandbox may forbid it.
    with contextlib.suppress(OSError, ValueError):
      resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def locked(path: pathlib.Path, *, wait: bool = False) -> Iterator[bool]:
  """Holds a lock file, which names the process that holds it.

  The lock is the operating system's (flock), so it ends with the process, even
  by kill -9. The file is removed at the end. A leftover file locks nothing.
  One of another user may stay, and names that user's last process.

  Args:
    path: The lock file; its folder exists.
    wait: Whether to print a message and wait for another process, or to raise.

  Yields:
    Whether the lock is effective: False on file systems without locks.

  Raises:
    LockedError: If another process holds the lock, 'process 12 on HOST'.
  """
  file, held = _open_locked(path, wait)
  with file:
    if file.writable():
      file.truncate(0)
      file.write(f'process {os.getpid()} on {socket.gethostname()}\n')
      file.flush()
    try:
      yield held
    finally:
      # Removed while it is still held; see `_open_locked`. If its folder was
      # moved, another process may hold the file of this name.
      with contextlib.suppress(PermissionError):
        if is_at(file, path):
          path.unlink(missing_ok=True)


def is_at(file: IO[Any], path: pathlib.Path) -> bool:
  """Whether a path still leads to this open file."""
  try:
    return os.path.samestat(os.fstat(file.fileno()), path.stat())
  except OSError as error:
    # NFS says ESTALE of a file that another host has removed.
    if error.errno not in (errno.ENOENT, errno.ESTALE):
      raise
    return False


def _open_locked(path, wait):
  """Returns the open lock file, and whether it could be locked."""
  while True:
    try:
      file = path.open('a+')  # Not truncated, since it names the holder.
    except PermissionError:
      if not path.exists():
        raise
      file = path.open()  # of another user; it can be locked, but on NFS
    try:
      held = _lock(file, wait)
      # The previous holder may have removed the file since it was opened here.
      if is_at(file, path):
        return file, held
    except BaseException as error:
      file.close()
      # As in `is_at`: the file was removed while `_lock` waited for it.
      if getattr(error, 'errno', None) != errno.ESTALE:
        raise
    file.close()


def _lock(file, wait):
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    holder = file.read().strip() or 'another process'
    if not wait:
      raise LockedError(holder) from None
    print(f'waiting for {holder}, which holds {file.name}', flush=True)
    fcntl.flock(file, fcntl.LOCK_EX)
  except OSError:
    return False  # a file system without locks
  return True


def _beside(path, suffix):
  name = path.name
  if suffix == _PART:  # A name may have 255 bytes, a character up to four.
    name = name[:50]
  return path.with_name(f'.{name}.{secrets.token_hex(4)}{suffix}')


def _remove(path):
  shutil.rmtree(path) if path.is_dir() else path.unlink()
