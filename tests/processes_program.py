"""Prints what two processes agree on; `distributed/processes_test` starts it.

  python tests/processes_program.py FILE [fails]

Each process writes its results to its own FILE, because threads of the library
that connects them write into the middle of output lines. With `fails`, the
second process fails before the first is done.
"""

import contextlib
import sys

import jax
import numpy as np

from gswinrmt_jax.commands import guard
from gswinrmt_jax.distributed import mesh, processes
from gswinrmt_jax.errors import UserError


def _whole(here, array):
  """Returns the rows of all processes, in process order."""
  copy = jax.jit(lambda x: x, out_shardings=here.replicated)
  return np.asarray(copy(array)).tolist()


def main(fails):
  """Prints what this process finds."""
  processes.start()
  index, count = processes.share()
  print('share', index, count, processes.is_first(), jax.device_count())
  processes.terminal().say('told once')
  print('greatest', processes.greatest(index), processes.greatest(-index))
  processes.check_agree('seeds', {'seed': 3})
  for seed in (7, index):
    try:
      processes.check_agree('seeds', {'seed': seed})
    except UserError as error:
      print('refused', seed == index, error)
  try:
    with processes.fail_together():
      if index == 1:
        raise UserError('the disk is full')
  except UserError as error:
    print('failed', error)

  here = mesh.Devices()
  if fails and index == 1:
    raise UserError('a picture cannot be read')
  own = np.arange(4 * index, 4 * index + 4)
  batch = here.put_batch({'row': own})['row']
  print('rows', batch.shape, _whole(here, batch))
  copied = here.replicate(np.arange(3))
  print('copied', copied.is_fully_replicated, np.asarray(copied).tolist())


if __name__ == '__main__':
  # Line-buffered: the end of the other process may kill this one, which then
  # closes no files.
  with (
      open(sys.argv[1], 'w', buffering=1) as found,
      contextlib.redirect_stdout(found),
  ):
    ended = guard.guarded(lambda: main('fails' in sys.argv))
  sys.exit(ended)
