"""Tests the arguments, exit status and one-line errors of `train`."""

import os
import pathlib
import subprocess
import sys

import jax
import pytest

from gswinrmt_jax import recipes
from gswinrmt_jax.commands import guard, recipe_files, train
from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import RunError, Stopped, UserError
from gswinrmt_jax.models import factory
from gswinrmt_jax.train import train_loop


@pytest.fixture
def calls(monkeypatch):
  found = []

  def note(config, folder):
    found.append((config, folder))
    ended = len(found) != 2
    tested = {'test_accuracy': 0.5} if ended and config.data.test_split else {}
    return {'steps': 5, 'total_steps': 5 if ended else 9, 'last': tested}

  monkeypatch.setattr(train_loop, 'train', note)
  return found


def test_recipe_and_workdir_reach_the_loop(calls):
  assert train.main(['--config=digits_swat:smoke', '--config.seed=5']) == 0
  assert train.main(['--config', 'digits_swat', '--workdir', 'a/b']) == 0
  (first, folder), (_, other) = calls
  assert first.seed == 5 and first.model.name == 'swat_compact'
  assert folder == pathlib.Path('runs/digits_swat_smoke')
  assert other == pathlib.Path('a/b')


def test_a_folder_with_and_without_a_slash_is_the_same(calls):
  for folder in ('w', 'w/'):
    train.main(['--config=digits_rmt', f'--config.init_from={folder}'])
  assert [config.init_from for config, _ in calls] == ['w', 'w']


@pytest.mark.parametrize(
    ('overrides', 'name'),
    [
        ([], 'digits_rmt'),
        (['--config.seed=1'], 'digits_rmt-seed=1'),
        # This changes no result, so the earlier run is resumed.
        (['--config.stop_after_epochs=2'], 'digits_rmt'),
        (
            [
                '--config.model.widths=(8, 8, 12, 16)',
                '--config.optimizer.b1=.5',
            ],
            'digits_rmt-b1=0.5-widths=8,8,12,16',
        ),
        (
            ['--config.model.name=rmt_t', '--config.data.name=a/b c'],
            'digits_rmt-model=rmt_t-data=abc',
        ),
        (['--noconfig.augment.flip'], 'digits_rmt-flip=False'),
    ],
)
def test_a_folder_can_be_named_by_what_is_given(calls, overrides, name):
  train.main(['--config=digits_rmt', '--workdir=auto', *overrides])
  assert calls[0][1] == pathlib.Path('runs') / name


def test_the_next_steps_are_named(calls, capsys):
  """The test split is for the end of a run, unless it was turned off."""
  for fields in ([], [], ['--config.data.test_split=']):
    train.main(['--config=digits_rmt', '--workdir=a', *fields])
  finished, *others = capsys.readouterr().out.split('Next:\n')[1:]
  assert finished.splitlines()[:3] == [
      '  gswinrmt evaluate a',
      '  gswinrmt predict a IMAGE --maps maps',
      '  gswinrmt export a --format safetensors',
  ]
  for text in others:
    assert text.startswith('  gswinrmt evaluate a --split val\n')


def test_processes_join_before_anything_is_trained(calls, monkeypatch):
  joined = []
  monkeypatch.setattr(
      processes, 'start', lambda *how: joined.append((how, len(calls)))
  )
  how = ['--coordinator=host:1', '--processes', '2', '--process=1']
  assert train.main(['--config=digits_rmt', *how]) == 0
  assert train.main(['--config=digits_rmt']) == 0
  assert joined == [(('host:1', '2', '1'), 0), (('', '', ''), 1)]
  assert len(calls) == 2


def test_help_with_a_recipe_lists_its_fields(calls, capsys):
  """In columns; fields of the model show the named model's own values."""
  argv = ['--config=digits_rmt', '--config.model.widths=(8,8,8,8)', '--help']
  assert train.main(argv) == 0
  text = capsys.readouterr().out
  assert text.startswith('usage: python train.py --config=digits_rmt')
  fields = {
      line.split()[0]: line for line in text.splitlines() if line[:1].isalpha()
  }
  for path in (*recipes.FIELDS, *(f'model.{name}' for name in factory.FIELDS)):
    assert len(fields[path].split()) > 2, path
  assert ' 0.003  ' in fields['optimizer.learning_rate']
  assert fields['optimizer.learning_rate'].endswith('  peak learning rate')
  assert ' (8,8,8,8)  ' in fields['model.widths']
  assert ' (4,)  ' in fields['model.full_stages']
  assert fields['model.decay'].split()[1] == 'fixed'
  assert 'None' not in text
  assert max(map(len, text.splitlines())) <= 100
  columns = {
      line.index(line.split(maxsplit=2)[2])
      for path, line in fields.items()
      if path.startswith('augment.')
  }
  assert len(columns) == 1
  assert not calls


def test_help_has_the_values_of_the_run():
  config = recipe_files.load('camvid:rmt', [])
  shown = dict(
      line.split()[:2]
      for line in train.describe(config).splitlines()
      if line[:1].isalpha()
  )
  for name, value in recipes.resolve(config).model.items():
    assert shown[f'model.{name}'] == train._text(value), name
  assert shown['model.feature_norm'] == 'True'


def _raise(error):
  raise error


def _in_c(error):
  """Returns the SystemError in which C code may hide the error of a signal."""
  hidden = SystemError('returned a result with an exception set')
  hidden.__cause__ = error
  return hidden


@pytest.mark.parametrize(
    ('error', 'status', 'said'),
    [
        (UserError('no such\n  thing'), 2, 'gswinrmt: no such thing\n'),
        (
            PermissionError(13, 'Denied', 'f'),
            2,
            'gswinrmt: f: Denied\n',
        ),
        (
            RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying'),
            2,
            'gswinrmt: the device does not have enough memory: lower '
            'the batch size (config.batch_size, config.eval_batch_size, '
            '--batch-size) or the size of images; if another process of JAX '
            'holds the GPU, set XLA_PYTHON_CLIENT_PREALLOCATE=false for both\n',
        ),
        (RunError('disk full'), 1, 'gswinrmt: disk full\n'),
        (
            MemoryError('Unable to allocate 4 TiB'),
            2,
            'gswinrmt: there is not enough memory: Unable to allocate 4 TiB\n',
        ),
        (MemoryError(), 2, 'gswinrmt: there is not enough memory\n'),
        (
            RuntimeError('FAILED: DNN library initialization failed. Look'),
            2,
            'gswinrmt: cuDNN cannot start, as the lines of XLA above explain: '
            'install the cuDNN that JAX needs (the extra cuda12 or cuda13); '
            'or, if another process of JAX holds the GPU, set '
            'XLA_PYTHON_CLIENT_PREALLOCATE=false for both\n',
        ),
        (KeyboardInterrupt(), 130, '\ngswinrmt: stopped\n'),
        (_in_c(KeyboardInterrupt()), 130, '\ngswinrmt: stopped\n'),
        (Stopped('at step 3', 15), 143, 'gswinrmt: at step 3\n'),
    ],
)
def test_what_the_user_can_mend_is_one_line(capsys, error, status, said):
  with guard.reported('stopped') as outcome:
    raise error
  assert outcome.status == status
  assert capsys.readouterr().err == said


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
  """Plain Python waits for XLA, or crashes while XLA still compiles."""
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


@pytest.mark.parametrize(
    ('status', 'written'), [(0, b'done\nended\n'), (2, b'done\n')]
)
def test_all_is_written_and_only_success_exits_as_usual(status, written):
  program = (
      'import atexit; from gswinrmt_jax.commands import guard; '
      "atexit.register(print, 'ended'); "
      f"guard.exits(lambda: print('done') or {status})"
  )
  done = subprocess.run(
      [sys.executable, '-c', program], stdout=subprocess.PIPE, check=False
  )
  assert (done.returncode, done.stdout) == (status, written)


def test_a_reader_that_is_gone_is_not_reported():
  """As with `train --help | head -1`."""
  program = (
      'from gswinrmt_jax.commands import guard; '
      "guard.exits(lambda: guard.guarded(lambda: print('help' * 99)))"
  )
  reader, writer = os.pipe()
  os.close(reader)
  with os.fdopen(writer) as broken:
    done = subprocess.run(
        [sys.executable, '-c', program],
        stdout=broken,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
  assert (done.returncode, done.stderr) == (141, b'')


def test_what_steers_a_terminal_is_escaped(capsys):
  guard.complain('class ab\x1b[2J')
  assert capsys.readouterr().err == 'gswinrmt: class ab\\x1b[2J\n'


@pytest.mark.parametrize('stdout', [subprocess.PIPE, None])
def test_what_fails_waits_for_no_thread(stdout):
  """Not even if nobody reads its output."""
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
