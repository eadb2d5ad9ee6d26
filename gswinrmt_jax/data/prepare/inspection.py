"""Decodes every picture once, as training will, to see whether it can be."""

from collections.abc import Iterator, Sequence
import concurrent.futures
import functools
import hashlib
import multiprocessing
import pathlib
from typing import NamedTuple
import warnings

from gswinrmt_jax.data import parallel, pictures
from gswinrmt_jax.data.prepare import collection
from gswinrmt_jax.data.prepare.collection import Picture
from gswinrmt_jax.errors import UserError

_CHUNK = 32  # pictures handed to a process at a time


class Finding(NamedTuple):
  """What is found in a picture.

  Attributes:
    problem: Why it cannot be used; empty for a good one.
    digest: 64 bits of the BLAKE2 hash of its bytes.
    size: Its length in bytes.
    width: As in `pictures.Stored`, as are the next.
    height: Likewise.
    mode: Likewise.
    format: Likewise.
    turned: Likewise.
  """

  problem: str
  digest: int = 0
  size: int = 0
  width: int = 0
  height: int = 0
  mode: str = ''
  format: str = ''
  turned: bool = False


def inspect(content: bytes) -> Finding:
  """Returns what is found when a picture is decoded as training does it."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      _, stored = pictures.open_rgb(content)
  except ValueError as error:
    return Finding(str(error))
  return Finding('', digest(content), len(content), *stored)


def digest(content: bytes) -> int:
  """Returns 64 bits that differ between files; one chance in 10^7 for 10^6."""
  return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def inspect_all(
    root: pathlib.Path, wanted: Sequence[Picture], jobs: int
) -> Iterator[Finding]:
  """Yields each picture's finding, in order.

  Args:
    root: Directory that their paths are relative to.
    wanted: The pictures.
    jobs: Processes; 1 for none but this one.

  Raises:
    UserError: If a process dies.
  """
  inspect_here = functools.partial(_inspect_file, root)
  if jobs == 1:
    yield from map(inspect_here, wanted)
    return
  # Not forked: threads of this process may hold locks.
  spawn = multiprocessing.get_context('spawn')
  try:
    with concurrent.futures.ProcessPoolExecutor(
        jobs, spawn, parallel.begin_worker
    ) as pool:
      yield from pool.map(inspect_here, wanted, chunksize=_CHUNK)
  except concurrent.futures.BrokenExecutor as error:
    raise UserError(
        'a process that decodes pictures was killed (out of memory?): try a '
        'smaller --jobs'
    ) from error


def _inspect_file(root: pathlib.Path, picture: Picture) -> Finding:
  try:
    return inspect(collection.read(root, picture))
  except OSError as error:
    return Finding(error.strerror or str(error))
