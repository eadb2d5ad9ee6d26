"""Memory that is freed stays with the process, on a CPU."""

import os
import platform
import subprocess
import sys

import jax
import pytest

from gswinrmt_jax.commands import train
from gswinrmt_jax.distributed import allocation, processes
from gswinrmt_jax.train import train_loop

_LARGE = 200 * 2**20
# Prints page faults of the main thread, in which programs run then.
_FAULTS = f"""
import ctypes, resource, sys
from gswinrmt_jax.distributed import allocation
if 'keep' in sys.argv:
  assert allocation.keep()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def use():
  place = ctypes.c_void_p(libc.malloc({_LARGE}))
  ctypes.memset(place, 1, {_LARGE})
  libc.free(place)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*arguments):
  environment = {
      name: value
      for name, value in os.environ.items()
      if not name.startswith(('MALLOC_', 'GLIBC_'))
  }
  done = subprocess.run(
      [sys.executable, '-c', _FAULTS, *arguments],
      capture_output=True,
      text=True,
      check=True,
      env={**environment, 'JAX_PLATFORMS': 'cpu'},
  )
  return int(done.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != 'glibc', reason="malloc is not glibc's"
)
def test_memory_is_used_again_without_page_faults():
  assert _faults() > 40  # pages, or large ones
  assert _faults('keep') < 20


@pytest.fixture
def asked(monkeypatch, tmp_path):
  """What mallopt is asked for; the machine has no accelerator."""
  calls = []

  class Library:

    def mallopt(self, name, value):
      calls.append((name, value))
      return 1

  (tmp_path / 'dev').mkdir()
  monkeypatch.setattr(allocation, '_ROOT', tmp_path)
  monkeypatch.setattr(allocation.ctypes, 'CDLL', lambda name: Library())
  monkeypatch.delenv('JAX_PLATFORMS', raising=False)
  before = jax.config.read('jax_cpu_enable_async_dispatch')
  for name in [name for name in os.environ if name.startswith('MALLOC_')]:
    monkeypatch.delenv(name)
  yield calls
  jax.config.update('jax_cpu_enable_async_dispatch', before)


def test_a_machine_without_accelerator_keeps(asked):
  assert allocation.keep() and len(asked) == 2
  assert not jax.config.read('jax_cpu_enable_async_dispatch')


@pytest.mark.parametrize('name', ['nvidia0', 'kfd', 'accel0', 'vfio/0'])
def test_one_with_an_accelerator_only_if_it_is_not_used(
    asked, tmp_path, monkeypatch, name
):
  path = tmp_path / 'dev' / name
  path.parent.mkdir(exist_ok=True)
  path.touch()
  assert not allocation.keep() and not asked
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  assert allocation.keep() and asked


@pytest.mark.parametrize(
    ('variable', 'value'),
    [('MALLOC_ARENA_MAX', '4'), ('JAX_PLATFORMS', 'cuda')],
)
def test_the_environment_has_the_last_word(asked, monkeypatch, variable, value):
  monkeypatch.setenv(variable, value)
  assert not allocation.keep() and not asked


def test_another_library_has_nothing_to_be_asked(asked, monkeypatch):
  monkeypatch.setattr(allocation.ctypes, 'CDLL', lambda name: object())
  assert not allocation.keep()


def test_training_begins_with_it(monkeypatch, tmp_path):
  """Threads that are there before go on as they did."""
  events = []
  for owner, name in (
      (allocation, 'keep'),
      (processes, 'start'),
      (train_loop, 'train'),
  ):
    monkeypatch.setattr(owner, name, lambda *_, name=name: events.append(name))
  assert train.main(['--config=digits_retention', f'--workdir={tmp_path}']) == 0
  assert events == ['keep', 'start', 'train']
