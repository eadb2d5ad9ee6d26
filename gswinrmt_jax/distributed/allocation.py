"""How memory is given back to the system: not at all while a CPU computes."""

import ctypes
import os
import pathlib

import jax

_ROOT = pathlib.Path('/')  # of /dev
# What a GPU of NVIDIA, one of AMD and a TPU are there.
_ACCELERATORS = ('nvidia[0-9]*', 'kfd', 'accel*', 'vfio/[0-9]*')
# Parameters of mallopt(3), with values: nothing by mmap, nothing given back.
_SETTINGS = ((-4, 0), (-1, 2**31 - 1))


def keep() -> bool:
  """Has this process keep memory that it frees, if it computes on a CPU.

  XLA's CPU backend allocates all temporaries of a program anew in each call.
  So much glibc takes from the system and gives back at once: each page is
  cleared, and found missing, in each training step.

  Only the main thread can have so much of what is kept, so programs run in it
  from here on: JAX must not have begun, and who calls one waits for its end.
  (One pool for all threads would do as well, but has them wait for each other
  as they compile.)

  Nothing is done where there is an accelerator, unless JAX_PLATFORMS says
  'cpu'; where variables tell malloc what to do; or where it is not glibc's.

  Returns:
    Whether it is so now.
  """
  told = [name for name in os.environ if name.startswith('MALLOC_')]
  if told or not on_cpu():
    return False
  try:
    mallopt = ctypes.CDLL(None).mallopt
  except (AttributeError, OSError, TypeError):
    return False
  if not all([mallopt(name, value) for name, value in _SETTINGS]):
    return False
  jax.config.update('jax_cpu_enable_async_dispatch', False)
  return True


def on_cpu() -> bool:
  """Returns whether programs will run on a CPU; JAX need not have begun."""
  platforms = os.environ.get('JAX_PLATFORMS')
  if platforms:
    return platforms == 'cpu'
  dev = _ROOT / 'dev'
  return not any(any(dev.glob(name)) for name in _ACCELERATORS)
