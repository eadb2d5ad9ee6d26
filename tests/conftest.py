"""Settings and fixtures for all tests."""

import gc
import os
import pathlib

import compiling

os.environ.setdefault('XLA_FLAGS', compiling.quick_flags())
# On a GPU, float32 would meet TF32, and each worker reserve most of its memory.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# CI preloads mimalloc; commands that say so would print another line here.
os.environ.pop('GSWINRMT_ALLOCATOR', None)

import jax
import jaxtyping
import pytest

# Tracing allocates millions of objects. Collecting garbage after every 700 of
# them, Python's default, takes a tenth of the tests' time.
gc.set_threshold(50_000)
# A missing axis raises an error instead of broadcasting silently.
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Checks annotated shapes, in these packages only: elsewhere, tree maps fill the
# fields of a train state with values that are not arrays.
_CHECKED = 'ops', 'models', 'augment', 'interpret'
jaxtyping.install_import_hook(
    [f'gswinrmt_jax.{part}' for part in _CHECKED], 'beartype.beartype'
)


def pytest_runtest_setup(item):
  """Checks shapes in the tests of these packages; others run as users do."""
  folder = item.path.relative_to(pathlib.Path(__file__).parent).parts[0]
  jaxtyping.config.update(
      'jaxtyping_disable', folder not in (*_CHECKED, 'detection')
  )


@pytest.fixture
def as_users_run(monkeypatch):
  """Turns jaxtyping's checks off: users run without them."""
  monkeypatch.setattr(jaxtyping.config, 'jaxtyping_disable', True)


@pytest.fixture(scope='module')
def usual_kernels():
  """For tests of bitwise equality."""
  with compiling.usual_kernels():
    yield


@pytest.fixture(scope='module')
def compiled_once(tmp_path_factory):
  """Lets runs reuse the programs that this worker has compiled."""
  import tiny_parts

  with tiny_parts.compiled_once(tmp_path_factory.getbasetemp() / 'compiled'):
    yield


@pytest.fixture
def tiny_installed(monkeypatch):
  """Replaces data sets and models by tiny ones."""
  import tiny_parts

  tiny_parts.install(monkeypatch)


@pytest.fixture(scope='session')
def launcher(tmp_path_factory):
  """Starts runs of the tiny model as processes; shared by test files."""
  import tiny_runs

  folder = tmp_path_factory.mktemp('launcher')
  with tiny_runs.Launcher(folder) as launcher:
    yield launcher


@pytest.fixture(scope='session')
def unbroken(launcher, tmp_path_factory):
  """The folder of an uninterrupted run."""
  folder = tmp_path_factory.mktemp('runs') / 'unbroken'
  status, said = launcher.run(folder, ema_decay=0.9)
  assert status == 0, said
  return folder
