"""Decodes every picture once, in several processes, before it is believed."""

from collections import deque
from collections.abc import Iterator
import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import pathlib
from typing import NamedTuple
import warnings

import PIL

from gswinrmt_jax.data import collection as collection_lib
from gswinrmt_jax.data import pictures, workers
from gswinrmt_jax.data.collection import Picture
from gswinrmt_jax.errors import UserError

_VERSION = 2  # of what can be used; what was found by another is not believed
_CHUNK = 32  # pictures handed to a process at a time


class Finding(NamedTuple):
  """What a look at a picture gave.

  Attributes:
    problem: Why it cannot be used; empty for a good one.
    digest: 64 bits of the BLAKE2 hash of its bytes.
    size: Its length in bytes.
    width: As `pictures.Stored` has it, as are the next.
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


Stamp = tuple[int, int]  # size and time of change
Known = tuple[Stamp, Finding]


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
    root: pathlib.Path,
    wanted: list[Picture],
    *,
    jobs: int,
    journal: pathlib.Path,
) -> Iterator[tuple[Finding, bool]]:
  """Yields each picture's finding, and whether it is new, in their order.

  Args:
    root: Of their paths.
    wanted: What to look at.
    jobs: Processes; 1 for none but this one.
    journal: A file to which findings are added, and from which those of files
      that have not changed since are taken.

  Raises:
    UserError: If a process dies.
  """
  import tqdm

  heading = f'{_VERSION}, Pillow {PIL.__version__}, {root}'
  known = _read_journal(journal, heading)
  if known:
    message = f'{len(known):,} pictures were looked at by an earlier run'
    tqdm.tqdm.write(message)  # Beside the bar that may be there.
  chunks = (
      [(picture, _known(known, picture.file_name)) for picture in chunk]
      for chunk in _chunks(wanted)
  )
  with journal.open('a', encoding='utf-8') as file, _executor(jobs) as pool:
    file.write(json.dumps(heading) + '\n')
    for chunk, findings in _map(pool, root, chunks, ahead=4 * jobs):
      for (picture, before), (stamp, finding) in zip(
          chunk, findings, strict=True
      ):
        is_new = (stamp, finding) != before
        if is_new and stamp:
          line = [picture.file_name, stamp, finding]
          file.write(json.dumps(line, ensure_ascii=False) + '\n')
        yield finding, is_new
      file.flush()


def _chunks(wanted):
  iterator = iter(wanted)
  while chunk := list(itertools.islice(iterator, _CHUNK)):
    yield chunk


def _map(pool, root, chunks, ahead):
  """Yields each chunk with its findings, with few chunks under way."""
  if pool is None:
    for chunk in chunks:
      yield chunk, _inspect_chunk(root, chunk)
    return
  waiting = deque()
  try:
    for chunk in chunks:
      waiting.append((chunk, pool.submit(_inspect_chunk, root, chunk)))
      if len(waiting) > ahead:
        chunk, future = waiting.popleft()
        yield chunk, future.result()
    for chunk, future in waiting:
      yield chunk, future.result()
  except concurrent.futures.BrokenExecutor as error:
    raise UserError(
        'a process that decodes pictures ended without a word (out of '
        'memory?): try a smaller --jobs'
    ) from error


def _inspect_chunk(
    root: pathlib.Path, chunk: list[tuple[Picture, Known | None]]
) -> list[tuple[Stamp | None, Finding]]:
  findings = []
  for picture, before in chunk:
    try:
      stamp = collection_lib.stamp(root, picture)
      if before is None or before[0] != stamp:
        before = stamp, inspect(collection_lib.read(root, picture))
    except OSError as error:  # No stamp: the next run looks again.
      before = None, Finding(error.strerror or str(error))
    findings.append(before)
  return findings


def _read_journal(path: pathlib.Path, heading: str) -> dict[str, str]:
  """Returns the lines that earlier runs wrote under this heading, by name."""
  known = {}
  path.touch()
  # A run may have been killed in the middle of a line, even of a character.
  with path.open('r+', encoding='utf-8', errors='replace') as file:
    under = None
    for line in file:
      try:
        entry = json.loads(line)
      except ValueError:
        continue
      if isinstance(entry, str):
        under = entry
      elif under == heading and isinstance(entry, list) and len(entry) == 3:
        known[entry[0]] = line  # A fourth of the memory of what it says.
    file.write('\n')  # Ends a line that was cut.
  return known


def _known(lines: dict[str, str], file_name: str) -> Known | None:
  if file_name not in lines:
    return None
  _, stamp, finding = json.loads(lines[file_name])
  return tuple(stamp), Finding(*finding)


@contextlib.contextmanager
def _executor(jobs: int):
  if jobs == 1:
    yield None
    return
  # Not forked: threads of this process may hold locks.
  pool = concurrent.futures.ProcessPoolExecutor(
      jobs, multiprocessing.get_context('spawn'), workers.begin
  )
  try:
    yield pool
  finally:
    pool.shutdown(cancel_futures=True)
