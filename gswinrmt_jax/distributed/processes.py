"""Several processes that train one model together, on one host or on many.

All of them run the same program. Each reads its own part of every batch; only
the first writes logs and plots; all take part in checkpoints. They decide
together: a process that left alone would leave the others waiting in the next
sum.
"""

from collections.abc import Iterator
import contextlib
import json
import os
from typing import Any
import zlib

import jax
import numpy as np

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal

# The number of processes, and a variable that only launched processes have: in
# a batch script of SLURM nothing was launched.
_LAUNCHERS = (
    ('SLURM_NTASKS', 'SLURM_STEP_NODELIST'),
    ('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK'),
)
_LEAVE_SECONDS = 30  # wait for the others at the end


def start(coordinator: str = '', count: str = '', index: str = '') -> None:
  """Joins the other processes, before anything is done on a device.

  Without arguments the launcher's environment says who they are: that of SLURM
  or of Open MPI, which start one process for each device. Without either, or
  with only one process, nothing is done.

  Args:
    coordinator: `HOST:PORT` of the first process, with a free port.
    count: Number of processes.
    index: Of this one, from 0.

  Raises:
    UserError: If only some are given, or the others cannot be reached.
  """
  given = {'coordinator': coordinator, 'processes': count, 'process': index}
  missing = [f'--{name}' for name, value in given.items() if not value]
  if len(missing) == len(given):
    if not _launched():
      return
    who = {}
  elif missing:
    verb = 'is' if len(missing) == 1 else 'are'
    raise UserError(
        f'{" and ".join(missing)} {verb} missing: --coordinator, --processes '
        'and --process go together'
    )
  else:
    host, _, port = coordinator.rpartition(':')
    if not (host and all(map(str.isdecimal, (port, count, index)))):
      raise UserError(
          f'--coordinator={coordinator} --processes={count} --process={index}: '
          'must be HOST:PORT and two numbers from 0'
      )
    who = {
        'coordinator_address': coordinator,
        'num_processes': int(count),
        'process_id': int(index),
        # Else a launcher's environment would give each one device.
        'cluster_detection_method': 'deactivate',
    }
  # It would take SIGTERM for itself.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(**who, shutdown_timeout_seconds=_LEAVE_SECONDS)
  except (ValueError, RuntimeError) as error:
    raise UserError(
        f'the processes cannot join ({error}); --coordinator, --processes and '
        '--process say who they are'
    ) from error


def _launched():
  return any(
      os.environ.get(count, '1') != '1' and told in os.environ
      for count, told in _LAUNCHERS
  )


def is_first() -> bool:
  """Returns whether this is process 0, which writes shared files."""
  return jax.process_index() == 0


def share() -> tuple[int, int]:
  """Returns which part of each batch this process reads, and of how many."""
  return jax.process_index(), jax.process_count()


def terminal() -> Terminal:
  """Returns the terminal; only the first process prints to it."""
  # The null device stays open as long as the process lives.
  return Terminal(None if is_first() else open(os.devnull, 'w'))


def greatest(number: int) -> int:
  """Returns the greatest number of all processes; all must call this."""
  return int(_gather(np.array(number, np.int32)).max())


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Makes all processes fail if one fails inside.

  Raises:
    UserError: If another did.
  """
  try:
    yield
  except BaseException:
    greatest(1)
    raise
  if greatest(0):
    raise UserError('another process failed; it says why')


def check_same(what: str, value: Any) -> None:
  """Refuses processes that were started with different values.

  Args:
    what: Its name, for the message.
    value: Something that JSON can write.

  Raises:
    UserError: If it is not the same in all.
  """
  sums = _gather(np.array(zlib.crc32(json.dumps(value).encode()), np.uint32))
  if (sums != sums[0]).any():
    raise UserError(f'{what} of the {len(sums)} processes differ')


def _gather(value):
  """Returns the value of each process."""
  if jax.process_count() == 1:
    return value[None]
  from jax.experimental import multihost_utils

  # The value moves to the devices and back, which is the point of it.
  with jax.transfer_guard('allow'):
    return np.asarray(multihost_utils.process_allgather(value))
