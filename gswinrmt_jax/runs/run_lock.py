"""For callers that have not moved yet: `files.locked`, `run_folder.held`."""

import contextlib

from gswinrmt_jax import files
from gswinrmt_jax.runs.run_folder import held as of_run

__all__ = ['claimed', 'of_run']


@contextlib.contextmanager
def claimed(path):
  """Yields who holds a lock, or None and holds it."""
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(files.locked(path))
    except files.LockedError as holder:
      yield str(holder)
    else:
      yield None
