"""Settings every test runs under."""

import gc
import os

import compiling

os.environ.setdefault('XLA_FLAGS', compiling.quick_flags())

import jax
from jaxtyping import install_import_hook
import pytest

# Tracing makes objects by the million, which Python else looks through after
# every 700: a tenth of the tests' time.
gc.set_threshold(50_000)
# A missing axis fails here instead of broadcasting in silence.
jax.config.update('jax_numpy_rank_promotion', 'raise')
# Annotated shapes are checked. Only here: a train state is a tree, and tree
# maps fill its fields with things that are no arrays.
install_import_hook(
    [
        f'gswinrmt_jax.{part}'
        for part in ('ops', 'fast', 'models', 'augment', 'maps')
    ],
    'beartype.beartype',
)


@pytest.fixture(scope='module')
def usual_kernels():
  """For tests of what is to change no bit."""
  with compiling.usual_kernels():
    yield


@pytest.fixture(scope='module')
def compiled_once(tmp_path_factory):
  """Runs take over what was compiled before, in other files as well."""
  import tiny_parts

  with tiny_parts.compiled_once(tmp_path_factory.getbasetemp() / 'compiled'):
    yield


@pytest.fixture(scope='session')
def launcher(tmp_path_factory):
  """Starts runs of the tiny model as processes; one for all files."""
  import tiny_runs

  folder = tmp_path_factory.mktemp('launcher')
  with tiny_runs.Launcher(folder) as launcher:
    yield launcher


@pytest.fixture(scope='session')
def unbroken(launcher, tmp_path_factory):
  """The folder of a run that nothing happened to."""
  folder = tmp_path_factory.mktemp('runs') / 'unbroken'
  status, said = launcher.run(folder, ema_decay=0.9)
  assert status == 0, said
  return folder
