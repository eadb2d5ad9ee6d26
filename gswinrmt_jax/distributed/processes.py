"""Several processes that train one model together, on one host or on many.

All of them run the same program. Each reads its own part of every batch. Only
process 0 writes logs, plots and checkpoints; all read checkpoints. They decide
together when to end: if one left alone, the others would wait for it in the
next collective operation.
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

# Variables with the number of processes, and variables that only launched
# processes have: the batch script of SLURM itself has only the first.
_LAUNCHERS = (
    ('SLURM_NTASKS', 'SLURM_STEP_NODELIST'),
    ('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK'),
)
_LEAVE_SECONDS = 30  # timeout for the other processes at the end


def start(coordinator: str = '', count: str = '', index: str = '') -> None:
  """Joins the other processes; call it before any device is used.

  Without arguments, the launcher's environment identifies the processes. The
  launcher is SLURM or Open MPI, with one process per device. Without a
  launcher, or with only one process, this does nothing.

  Args:
    coordinator: `HOST:PORT` of the first process, with a free port.
    count: Number of processes.
    index: Index of this process, from 0.

  Raises:
    UserError: If only some are given, or the others cannot be reached.
  """
  if not (coordinator or count or index):
    if not _launched():
      return
    who = {}
  else:
    host, _, port = coordinator.rpartition(':')
    if not (host and all(map(str.isdecimal, (port, count, index)))):
      raise UserError(
          f'--coordinator={coordinator} --processes={count} --process={index}: '
          'must be HOST:PORT and two numbers from 0, all three together'
      )
    who = {
        'coordinator_address': coordinator,
        'num_processes': int(count),
        'process_id': int(index),
        # A launcher's environment would give each process only one device.
        'cluster_detection_method': 'deactivate',
    }
  # That service would intercept SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(**who, shutdown_timeout_seconds=_LEAVE_SECONDS)
  except (ValueError, RuntimeError) as error:
    raise UserError(
        f'the processes cannot join ({error}); identify them with '
        '--coordinator, --processes and --process'
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
  """Returns the part of each batch to read here, and the number of parts."""
  return jax.process_index(), jax.process_count()


def terminal() -> Terminal:
  """Returns the terminal; only process 0 prints to it."""
  return Terminal(None if is_first() else open(os.devnull, 'w'))


def greatest(number: int) -> int:
  """Returns the greatest number of any process; all have to call this."""
  return int(_gather(np.array(number, np.int32)).max())


@contextlib.contextmanager
def fail_together() -> Iterator[None]:
  """Makes all processes fail if one fails inside.

  Raises:
    UserError: If another process failed.
  """
  try:
    yield
  except BaseException:
    greatest(1)
    raise
  if greatest(0):
    raise UserError('another process failed; it says why')


def check_agree(what: str, value: Any) -> None:
  """Refuses processes that were started with different values.

  Args:
    what: Name of the value, in the plural, for the message.
    value: A JSON value.

  Raises:
    UserError: If the processes have different values.
  """
  sums = _gather(np.array(zlib.crc32(json.dumps(value).encode()), np.uint32))
  if (sums != sums[0]).any():
    raise UserError(
        f'{what} of the {len(sums)} processes differ: start all with the same '
        'command and data'
    )


def _gather(value):
  """Returns the values of all processes."""
  if jax.process_count() == 1:
    return value[None]
  from jax.experimental import multihost_utils

  # The value has to move to the devices and back.
  with jax.transfer_guard('allow'):
    return np.asarray(multihost_utils.process_allgather(value))
