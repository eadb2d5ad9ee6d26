"""Memory for computing on a CPU: mimalloc instead of glibc's allocator.

    python -m gswinrmt_jax.allocator jupyter lab    # or any other command

XLA's CPU backend allocates the temporaries of a program in every call. glibc
returns such large blocks to the system, which clears their pages again in the
next call: a third of the time of a training step. mimalloc keeps them for a
minute after they were freed. An allocator must be loaded before the process
starts, so a command that computes on a CPU restarts itself once, with
`LD_PRELOAD` set.
"""

from collections.abc import Mapping
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

SWITCH = 'GSWINRMT_ALLOCATOR'  # 'system' keeps the system's allocator
_LIBRARY = 'cmeel.prefix/lib/libmimalloc.so'  # in the wheel `cmeel-mimalloc`
_SETTINGS = {  # unless the user has set them
    # Milliseconds that it keeps what is freed. Without a limit, a training run
    # grew from 5 to 10 GB in two hours (docs/performance.md).
    'MIMALLOC_PURGE_DELAY': '60000',
    'MIMALLOC_ALLOW_LARGE_OS_PAGES': '1',
}
_CHOSEN_BY_USER = ('LD_PRELOAD', 'GLIBC_TUNABLES', SWITCH)
_ACCELERATORS = ('jax_plugins', 'libtpu')  # packages of CUDA and TPU


def variables(environment: Mapping[str, str]) -> dict[str, str]:
  """Returns what to add to an environment to load mimalloc; {} without it."""
  try:
    wheel = importlib.metadata.distribution('cmeel-mimalloc')
  except importlib.metadata.PackageNotFoundError:
    return {}
  library = pathlib.Path(str(wheel.locate_file(_LIBRARY)))
  if not library.exists() or {' ', ':'} & {*str(library)}:  # LD_PRELOAD splits.
    return {}
  preloaded = filter(None, [str(library), environment.get('LD_PRELOAD')])
  settings = {k: v for k, v in _SETTINGS.items() if k not in environment}
  return {'LD_PRELOAD': ':'.join(preloaded), SWITCH: 'mimalloc', **settings}


def helps(environment: Mapping[str, str]) -> bool:
  """Returns whether a restart with mimalloc makes JAX's programs faster.

  They must run on a CPU, on Linux with glibc, and the user must not have chosen
  an allocator or settings of glibc's.

  Args:
    environment: Environment variables of the process.
  """
  if any(
      name in _CHOSEN_BY_USER or name.startswith('MALLOC_')
      for name in environment
  ):
    return False
  if 'CS_GNU_LIBC_VERSION' not in getattr(os, 'confstr_names', {}):
    return False
  platforms = environment.get('JAX_PLATFORMS', '')
  if platforms:  # The first is the default.
    return platforms.split(',')[0] == 'cpu'
  return not any(map(importlib.util.find_spec, _ACCELERATORS))


def restart() -> None:
  """Restarts this process with mimalloc, if that helps.

  Call it before JAX is imported, and only from a program of its own: the
  process is replaced.
  """
  if helps(os.environ) and (added := variables(os.environ)):
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **added})


def notice() -> str:
  """Returns the line that tells of a restart; '' if there was none."""
  preloaded = 'mimalloc' in os.environ.get('LD_PRELOAD', '')
  if os.environ.get(SWITCH) != 'mimalloc' or not preloaded:
    return ''
  return f'Memory allocator: mimalloc, faster on a CPU ({SWITCH}=system: off).'


if __name__ == '__main__':
  if len(sys.argv) < 2:
    sys.exit('usage: python -m gswinrmt_jax.allocator COMMAND [ARGUMENT ...]')
  try:
    os.execvpe(
        sys.argv[1], sys.argv[1:], {**os.environ, **variables(os.environ)}
    )
  except OSError as problem:
    sys.exit(f'gswinrmt: {sys.argv[1]}: {problem.strerror}')
