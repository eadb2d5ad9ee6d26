"""Exit status and the one line."""

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


@pytest.mark.parametrize('error', [ZeroDivisionError(), RuntimeError('bug')])
def test_defects_keep_their_traceback(error):
  with pytest.raises(type(error)):
    guard.guarded(lambda: _raise(error))


def test_success_is_zero(capsys):
  assert guard.guarded(lambda: print('done')) == 0
  assert capsys.readouterr() == ('done\n', '')
