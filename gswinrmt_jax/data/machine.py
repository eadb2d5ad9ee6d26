"""What this process may use of the machine: cores and memory."""

import os
import pathlib
import shutil

_ROOT = pathlib.Path('/')  # of /proc and /sys


def cache_folder() -> pathlib.Path:
  """Returns where this user's files go that can be made anew."""
  user = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  return pathlib.Path(user).expanduser() / 'gswinrmt_jax'


def cores() -> int:
  """Returns how many cores this process may use, where the system tells."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def free_memory() -> int | None:
  """Returns how many bytes could be allocated, None if nothing tells.

  The least of what the machine has available (`MemAvailable`) and what is left
  of the limits of this process's control group and of those above it, version 2
  or 1. Page cache that would be given up does not count as used.
  """
  found = [_available(), *_left_in_groups()]
  return min((bytes_ for bytes_ in found if bytes_ is not None), default=None)


def free_shared_memory() -> int | None:
  """Returns how many bytes /dev/shm has room for, None if there is none."""
  try:
    return shutil.disk_usage(_ROOT / 'dev' / 'shm').free
  except OSError:
    return None


def _available():
  for line in _lines(_ROOT / 'proc' / 'meminfo'):
    if line.startswith('MemAvailable:'):
      return int(line.split()[1]) * 1024
  return None


def _left_in_groups():
  for line in _lines(_ROOT / 'proc' / 'self' / 'cgroup'):
    _, controllers, path = line.split(':', 2)
    top = _ROOT / 'sys' / 'fs' / 'cgroup'
    names = 'memory.max', 'memory.current', 'inactive_file'
    if controllers:
      if 'memory' not in controllers.split(','):
        continue
      top /= 'memory'
      names = (
          'memory.limit_in_bytes',
          'memory.usage_in_bytes',
          'total_inactive_file',
      )
    # In a container the path may be the host's, and the limit at the top.
    folder = top / path.lstrip('/')
    for place in (folder, *folder.parents):
      if place.is_relative_to(top):
        yield _left(place, *names)


def _left(folder, limit, used, cache):
  try:
    # Without a limit the first is 'max', or a number that no machine has.
    room = int((folder / limit).read_text())
    room -= int((folder / used).read_text())
  except (OSError, ValueError):
    return None
  for line in _lines(folder / 'memory.stat'):
    if line.split()[0] == cache:
      room += int(line.split()[1])
  return max(room, 0)


def _lines(path):
  try:
    return path.read_text().splitlines()
  except OSError:
    return []
