"""Exit status and the one line."""

import os
import subprocess
import sys

import jax
import pytest

from gswinrmt_jax.commands import guard
from gswinrmt_jax.errors import RunError, Stopped, UserError


def _raise(error):
  raise error


@pytest.mark.parametrize(
    ('error', 'status', 'said'),
    [
        (UserError('no such\n  thing'), 2, 'gswinrmt: no such thing\n'),
        (
            PermissionError(13, 'Denied', 'f'),
            2,
            "gswinrmt: [Errno 13] Denied: 'f'\n",
        ),
        (
            RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying'),
            2,
            'gswinrmt: the device has not enough memory: lower '
            'config.batch_size (or config.eval_batch_size, --batch-size)\n',
        ),
        (RunError('disk full'), 1, 'gswinrmt: disk full\n'),
        (
            MemoryError('Unable to allocate 4 TiB'),
            2,
            'gswinrmt: there is not enough memory: Unable to allocate 4 TiB\n',
        ),
        (KeyboardInterrupt(), 130, '\ngswinrmt: stopped\n'),
        (Stopped('at step 3', 15), 143, 'gswinrmt: at step 3\n'),
    ],
)
def test_what_the_user_can_mend_is_one_line(capsys, error, status, said):
  assert guard.guarded(lambda: _raise(error), interrupted='stopped') == status
  assert capsys.readouterr().err == said


def test_a_signal_amid_code_in_c(capsys):
  """An error without a line of ours, raised from that of the signal."""

  def command():
    raise SystemError('returned a result with an exception set') from (
        KeyboardInterrupt()
    )

  assert guard.guarded(command) == 130
  assert capsys.readouterr().err == '\ngswinrmt: interrupted\n'


@pytest.mark.parametrize(
    'error', [ZeroDivisionError(), RuntimeError('bug'), SystemError('bug')]
)
def test_defects_keep_their_traceback(error):
  with pytest.raises(type(error)):
    guard.guarded(lambda: _raise(error))


def test_success_is_zero(capsys):
  assert guard.guarded(lambda: print('done')) == 0
  assert capsys.readouterr() == ('done\n', '')


_COMPILES = """
import concurrent.futures, signal
from gswinrmt_jax.commands import guard

def run():
  import jax
  import jax.numpy as jnp

  @jax.jit
  def part(x):
    return jnp.tanh(x).cumsum()

  def whole(x):
    for _ in range(1500):
      x = part(x)
    return x

  lowered = jax.jit(whole).lower(jnp.ones(2000))
  signal.signal(signal.SIGALRM, signal.default_int_handler)
  signal.setitimer(signal.ITIMER_REAL, 0.5)
  print('compiling')
  %s  # a minute and a half

guard.exits(lambda: guard.guarded(run))
"""


@pytest.mark.parametrize(
    'compile_it',
    [
        pytest.param(
            'lowered.compile()',
            id='in the main thread',
            marks=pytest.mark.skipif(
                jax.__version_info__ > (0, 11),
                reason='JAX hears no signal while the main thread compiles',
            ),
        ),
        pytest.param(
            'concurrent.futures.ThreadPoolExecutor(1).submit(lowered.compile)'
            '.result()',
            id='in another',
        ),
    ],
)
def test_a_signal_ends_the_process_before_the_compiler_does(compile_it):
  """Python alone waits for XLA, or crashes as that goes on."""
  done = subprocess.run(
      [sys.executable, '-c', _COMPILES % compile_it],
      env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
  )
  assert done.returncode == 130
  assert done.stdout == 'compiling\n'
  assert done.stderr == '\ngswinrmt: interrupted\n'


@pytest.mark.parametrize('status', [0, 2])
def test_exit_functions_are_called_and_all_is_written(status):
  program = (
      'import atexit; from gswinrmt_jax.commands import guard; '
      "atexit.register(print, 'ended'); "
      f"guard.exits(lambda: print('done') or {status})"
  )
  done = subprocess.run(
      [sys.executable, '-c', program], stdout=subprocess.PIPE, check=False
  )
  assert (done.returncode, done.stdout) == (status, b'done\nended\n')


@pytest.mark.parametrize('stdout', [subprocess.PIPE, None])
def test_what_fails_waits_for_no_thread(stdout):
  """Nor if nobody reads what it has to say."""
  program = (
      'import concurrent.futures, time; '
      'from gswinrmt_jax.commands import guard; '
      'thread = concurrent.futures.ThreadPoolExecutor(1); '
      'thread.submit(time.sleep, 50); '
      "guard.exits(lambda: print('done') or 1)"
  )
  reader, writer = os.pipe()
  os.close(reader)
  with os.fdopen(writer) as broken:
    done = subprocess.run(
        [sys.executable, '-c', program],
        stdout=stdout or broken,
        env={**os.environ, 'PYTHONUNBUFFERED': ''},
        timeout=30,
        check=False,
    )
  assert done.returncode == 1
