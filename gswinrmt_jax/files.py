"""Files that are written whole or not at all, and JSON that may be damaged."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
from typing import Any

from gswinrmt_jax.errors import UserError


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Gives a path to write to, which takes the place of `path` in the end.

  It is `NAME.part` beside it. What was there before stays until all is on the
  disk, and stays if the writing fails: then the part is removed.

  Args:
    path: The file to write or to replace.

  Yields:
    Where to write.
  """
  part = path.with_name(f'{path.name}.part')
  try:
    yield part
    # A rename may reach the disk before what it names does.
    with part.open('rb') as file:
      os.fsync(file.fileno())
    os.replace(part, path)
  except BaseException:
    with contextlib.suppress(OSError):  # What went wrong is told, not this.
      part.unlink()
    raise


def read_json(path: pathlib.Path) -> Any:
  """Returns what a JSON file holds, whatever that is.

  Raises:
    FileNotFoundError: If it is not there.
    UserError: If it cannot be read.
  """
  try:
    return json.loads(path.read_bytes())
  except FileNotFoundError:
    raise
  # The last: of brackets within brackets.
  except (OSError, ValueError, RecursionError) as error:
    raise UserError(f'{path} cannot be read: {error}') from error
