"""Tests of the restart with another memory allocator."""

import os
import subprocess
import sys

import pytest

from gswinrmt_jax import allocator

pytestmark = pytest.mark.skipif(
    not allocator.variables({}), reason='mimalloc is not installed here'
)

_RESTART = """\
import sys
from gswinrmt_jax import allocator
allocator.restart()
print(sys.argv[1:], 'libmimalloc' in open('/proc/self/maps').read())
print(allocator.notice())
"""


def run(*command: str, **variables: str) -> list[str]:
  """Returns the lines that a process prints, with no allocator chosen."""
  environment = {
      name: value
      for name, value in os.environ.items()
      if 'MALLOC' not in name and name not in ('LD_PRELOAD', allocator.SWITCH)
  }
  done = subprocess.run(
      [sys.executable, *command],
      env={**environment, **variables},
      capture_output=True,
      text=True,
      check=True,
  )
  assert not done.stderr
  return done.stdout.splitlines()


def test_a_process_restarts_once_with_its_arguments():
  said = run('-c', _RESTART, 'a b', '--c=1', JAX_PLATFORMS='cpu')
  assert said[0] == "['a b', '--c=1'] True"
  assert 'mimalloc' in said[1] and f'{allocator.SWITCH}=system' in said[1]


def test_the_switch_keeps_the_system_allocator():
  switched_off = {allocator.SWITCH: 'system', 'JAX_PLATFORMS': 'cpu'}
  assert run('-c', _RESTART, **switched_off) == ['[] False', '']


def test_any_command_runs_with_mimalloc():
  code = "print('libmimalloc' in open('/proc/self/maps').read())"
  command = ('-m', 'gswinrmt_jax.allocator', sys.executable, '-c', code)
  assert run(*command) == ['True']


def test_what_the_user_preloads_stays():
  code = "import os; print(os.environ['LD_PRELOAD'])"
  command = ('-m', 'gswinrmt_jax.allocator', sys.executable, '-c', code)
  own = allocator.variables({})['LD_PRELOAD']
  assert allocator.variables({'LD_PRELOAD': 'a.so'})['LD_PRELOAD'] == (
      f'{own}:a.so'
  )
  assert run(*command) == [own]


def test_settings_of_the_user_stay():
  code = "import os; print(os.environ['MIMALLOC_PURGE_DELAY'])"
  command = ('-m', 'gswinrmt_jax.allocator', sys.executable, '-c', code)
  assert run(*command, MIMALLOC_PURGE_DELAY='5') == ['5']
  assert int(*run(*command)) > 5


@pytest.mark.parametrize(
    ('environment', 'expected'),
    [
        ({'JAX_PLATFORMS': 'cpu'}, True),
        ({'JAX_PLATFORMS': 'cpu,cuda', 'MALLOC': '1'}, True),
        ({'JAX_PLATFORMS': 'cuda,cpu'}, False),
        ({'JAX_PLATFORMS': 'cpu', 'LD_PRELOAD': 'other.so'}, False),
        ({'JAX_PLATFORMS': 'cpu', 'MALLOC_ARENA_MAX': '2'}, False),
        ({'JAX_PLATFORMS': 'cpu', 'MIMALLOC_PURGE_DELAY': '0'}, True),
        ({'JAX_PLATFORMS': 'cpu', 'GLIBC_TUNABLES': 'glibc.cpu=1'}, False),
        ({'JAX_PLATFORMS': 'cpu', allocator.SWITCH: 'system'}, False),
    ],
)
def test_where_a_restart_helps(environment, expected):
  assert allocator.helps(environment) is expected


@pytest.mark.parametrize('package', ['jax_plugins', 'libtpu'])
def test_an_accelerator_needs_no_restart(monkeypatch, package):
  found = {'jax_plugins': None, 'libtpu': None}
  monkeypatch.setattr(allocator.importlib.util, 'find_spec', found.get)
  assert allocator.helps({})
  found[package] = object()
  assert not allocator.helps({})
