"""The files of a checkpoint: written whole, listed, found damaged, removed.

Each checkpoint has a list of its files with their lengths and checksums, so
that damage is told by name. A folder that is not finished, or no longer
needed, never has the name of a checkpoint: that is given and taken by renaming.
"""

import json
import os
import pathlib
import shutil
import zlib

_LIST = 'files.json'
_PART, _GONE = '.part', '.gone'
# Orbax writes into folders of names like this, to be renamed.
_LEFTOVERS = (f'*{_PART}', f'*{_GONE}', '*.orbax-checkpoint-tmp*')


def part(folder: pathlib.Path) -> pathlib.Path:
  """Returns where a checkpoint is written before it is whole."""
  return folder.with_name(folder.name + _PART)


def finish(folder: pathlib.Path) -> None:
  """Lists the files of `part(folder)`, sees them to the disk, and renames it.

  Raises:
    OSError: If it cannot be; there is no such checkpoint then.
  """
  written = part(folder)
  listed = {}
  for path in sorted(written.rglob('*')):
    if path.is_file():
      listed[str(path.relative_to(written))] = _size_and_checksum(path)
  (written / _LIST).write_text(json.dumps(listed))
  for path in (written, *written.rglob('*')):
    _sync(path)
  written.rename(folder)
  _sync(folder.parent)


def damage(folder: pathlib.Path, *, only: str = '') -> list[str]:
  """Returns what is wrong with which files, 'state/d/9f: its bytes changed'.

  Args:
    folder: Of one checkpoint.
    only: The one file to look at; '' for all.
  """
  try:
    listed = json.loads((folder / _LIST).read_text())
  except FileNotFoundError:  # of an earlier version, or no checkpoint at all
    needed = ('meta/metadata', 'state/_METADATA')
    return [f'{f}: missing' for f in needed if not (folder / f).exists()]
  except (OSError, ValueError) as error:
    return [f'{_LIST}: {error}']
  found = []
  for name, (size, checksum) in listed.items():
    path = folder / name
    if only not in ('', name):
      continue
    if not path.exists():
      found.append(f'{name}: missing')
    elif path.stat().st_size != size:
      found.append(f'{name}: {path.stat().st_size} bytes instead of {size}')
    elif _size_and_checksum(path)[1] != checksum:
      found.append(f'{name}: its bytes changed')
  return found


def remove(folder: pathlib.Path) -> None:
  """Removes a checkpoint; a process killed meanwhile leaves no half of one."""
  gone = folder.with_name(folder.name + _GONE)
  folder.rename(gone)
  shutil.rmtree(gone)


def remove_leftovers(directory: pathlib.Path) -> None:
  """Removes what a killed process was writing or removing."""
  for pattern in _LEFTOVERS:
    for path in directory.glob(pattern):
      shutil.rmtree(path) if path.is_dir() else path.unlink()


def set_aside(folder: pathlib.Path) -> None:
  """Moves a checkpoint to `damaged_checkpoints` beside its directory."""
  shelf = folder.parent.parent / 'damaged_checkpoints'
  shelf.mkdir(exist_ok=True)
  place, count = shelf / folder.name, 1
  while place.exists():
    place, count = shelf / f'{folder.name}_{count}', count + 1
  folder.rename(place)


def _size_and_checksum(path):
  size, total = 0, 0
  with path.open('rb') as file:
    while chunk := file.read(1 << 20):
      size, total = size + len(chunk), zlib.crc32(chunk, total)
  return size, total


def _sync(path):
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
