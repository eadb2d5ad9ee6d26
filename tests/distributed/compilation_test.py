"""Tests the cache of compiled programs, and compilation in the background."""

import io
import pathlib
from unittest import mock

import jax
import numpy as np
import pytest

from gswinrmt_jax import terminal as terminal_lib
from gswinrmt_jax.distributed import compilation
from gswinrmt_jax.terminal import Terminal


def test_quick_compilation_is_for_the_cpu(monkeypatch):
  for backend in ('gpu', 'cpu'):
    monkeypatch.setattr(jax, 'default_backend', lambda backend=backend: backend)
    options = compilation.quick_compilation()
    assert bool(options) == (backend == 'cpu')
  # XLA refuses options that it does not have.
  assert jax.jit(lambda x: x + 1, compiler_options=options)(1) == 2


@pytest.fixture
def setting(monkeypatch, tmp_path):
  """Returns a function that reads JAX's cache folder, which starts unset."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  before = jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', None)
  yield lambda: jax.config.jax_compilation_cache_dir
  jax.config.update('jax_compilation_cache_dir', before)


def test_several_processes_keep_no_programs(setting, monkeypatch):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  compilation.keep_programs()
  assert setting() is None


@pytest.mark.parametrize('backend', ['gpu', 'cpu'])
def test_programs_for_accelerators_are_kept(
    setting, monkeypatch, tmp_path, backend
):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  compilation.keep_programs()
  kept = str(tmp_path / 'gswinrmt_jax' / 'compiled')
  assert setting() == (kept if backend == 'gpu' else None)


def test_nothing_is_kept_without_a_home(setting, monkeypatch):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  monkeypatch.delenv('XDG_CACHE_HOME')
  error = mock.Mock(side_effect=RuntimeError)
  monkeypatch.setattr(pathlib.Path, 'expanduser', error)
  compilation.keep_programs()
  assert setting() is None and error.called


def test_the_place_that_somebody_chose_stays(setting, monkeypatch):
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  jax.config.update('jax_compilation_cache_dir', '/chosen')
  compilation.keep_programs()
  assert setting() == '/chosen'


def test_the_first_call_alone_is_announced(monkeypatch):
  monkeypatch.setattr(terminal_lib, '_PATIENCE', 0)
  traced, said = [], io.StringIO()

  @jax.jit
  def double(x):
    traced.append(x)
    return 2 * x

  call = compilation.show_compilation(double, 'it', Terminal(said))
  assert not said.getvalue() and not traced
  assert call(2) == 4 and call(3) == 6
  assert said.getvalue().count('Compiling it (once) ...') == 1
  assert len(traced) == 1
  np.testing.assert_array_equal(call(np.ones(3)), [2, 2, 2])
