"""Tests terminal output: lines, progress, durations and a closed pipe."""

import errno
import io
import pathlib
import re
import subprocess
import sys

import processes
import pytest

from gswinrmt_jax import terminal as terminal_lib


class _Screen(io.StringIO):

  def isatty(self):
    return True


@pytest.mark.parametrize(
    ('columns', 'shown'), [(21, 'a' * 20), (20, 'b' * 15), (9, 'c' * 8)]
)
def test_progress_fits_the_terminal(monkeypatch, columns, shown):
  monkeypatch.setenv('COLUMNS', str(columns))
  screen = _Screen()
  terminal_lib.Terminal(screen).progress('a' * 20, 'b' * 15, 'c' * 10)
  assert screen.getvalue() == f'\r\x1b[K{shown}'


def test_progress_is_redrawn_on_a_terminal_and_said_elsewhere():
  screen, pipe = _Screen(), io.StringIO()
  for stream in (screen, pipe):
    terminal = terminal_lib.Terminal(stream)
    terminal.progress('step 1')
    terminal.progress('step 2')
    terminal.say('done')
  assert screen.getvalue() == '\r\x1b[Kstep 1\r\x1b[Kstep 2\ndone\n'
  assert pipe.getvalue() == 'step 1\nstep 2\ndone\n'


def test_what_a_stream_cannot_show_is_escaped(at_once):
  """A name may be of another script, not UTF-8, or steer the terminal."""
  log = io.TextIOWrapper(io.BytesIO(), encoding='latin-1')
  terminal_lib.Terminal(log).say('\u732b 85.00%')
  screen = _Screen()
  terminal = terminal_lib.Terminal(screen)
  terminal.progress('caf\udce9 \x1b[2J')
  with terminal.busy('maps of \x1b[2J'):
    processes.until(lambda: 'maps' in screen.getvalue())
  assert log.buffer.getvalue() == b'\\u732b 85.00%\n'
  assert screen.getvalue().startswith('\r\x1b[Kcaf\\udce9 \\x1b[2J\r')
  assert 'maps of \\x1b[2J ...' in screen.getvalue()


@pytest.fixture
def at_once(monkeypatch):
  monkeypatch.setattr(terminal_lib, '_PATIENCE', 0)


def test_a_long_wait_is_one_line_of_a_log_with_its_time(at_once):
  log = io.StringIO()
  terminal = terminal_lib.Terminal(log)
  with terminal.busy('Compiling'):
    processes.until(lambda: log.getvalue())
    assert log.getvalue() == 'Compiling ...'
  terminal.say('done')
  assert re.fullmatch(r'Compiling \.\.\. 0\.\ds\ndone\n', log.getvalue())


def test_what_is_said_meanwhile_has_a_line_of_its_own(at_once):
  log = io.StringIO()
  terminal = terminal_lib.Terminal(log)
  with terminal.busy('Compiling'):
    processes.until(lambda: log.getvalue())
    terminal.say('meanwhile')
  terminal.say('done')
  assert log.getvalue() == 'Compiling ...\nmeanwhile\ndone\n'


def test_the_progress_line_ends_before_others_print():
  screen = _Screen()
  terminal = terminal_lib.Terminal(screen)
  terminal.end_line()
  terminal.progress('step 1')
  terminal.end_line()
  terminal.end_line()
  assert screen.getvalue() == '\r\x1b[Kstep 1\n'


def test_the_seconds_count_up_in_place_on_a_terminal(at_once, monkeypatch):
  monkeypatch.setattr(terminal_lib, '_TICK', 0.01)
  screen = _Screen()
  terminal = terminal_lib.Terminal(screen)
  with terminal.busy('Compiling'):
    processes.until(
        lambda: screen.getvalue().count('\r\x1b[KCompiling ... 0.') > 2
    )
  terminal.say('done')
  *_, last = screen.getvalue().split('\r\x1b[K')
  assert re.fullmatch(r'Compiling \.\.\. \d\.\ds\ndone\n', last)


def test_what_is_quick_says_nothing(monkeypatch):
  monkeypatch.setattr(terminal_lib, '_PATIENCE', 60)
  log = io.StringIO()
  with terminal_lib.Terminal(log).busy('Compiling'):
    pass
  assert not log.getvalue()


def test_a_file_that_a_run_can_do_without_is_named():
  stream = io.StringIO()
  with terminal_lib.Terminal(stream).warn_if_not_written('curves.png'):
    raise OSError(28, 'No space left on device')
  assert stream.getvalue() == (
      'curves.png was not written (No space left on device)\n'
  )


def test_a_stream_may_have_write_alone_and_none_is_silent(monkeypatch):
  class Tee:
    """As notebooks and scripts define it."""

    def __init__(self):
      self.text = ''

    def write(self, text):
      self.text += text

  tee = Tee()
  terminal_lib.Terminal(tee).say('said')
  assert tee.text == 'said\n'
  monkeypatch.setattr(sys, 'stdout', None)
  terminal_lib.Terminal().say('nothing')


def test_a_run_outlives_a_full_disk_of_its_log():
  written = []

  class Log(io.StringIO):

    def write(self, text):
      if not written:
        written.append('')
        raise OSError(errno.EDQUOT, 'Disk quota exceeded')
      written.append(text)
      return len(text)

  log = terminal_lib.Terminal(Log())
  log.say('lost')
  log.say('kept')
  assert 'kept' in ''.join(written)


def test_a_run_outlives_the_reader_of_its_pipe():
  program = (
      'import sys\n'
      'from gswinrmt_jax import terminal\n'
      'out = terminal.Terminal()\n'
      'out.say("first")\n'
      'sys.stdin.read()\n'
      'for _ in range(3):\n'
      '  out.say("nobody reads this")\n'
      'print("nor this")\n'
      'print("came to its end", file=sys.stderr)\n'
  )
  process = subprocess.Popen(
      [sys.executable, '-c', program],
      cwd=pathlib.Path(terminal_lib.__file__).parents[1],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
  )
  assert process.stdout.readline() == 'first\n'
  process.stdout.close()
  process.stdin.close()
  assert process.stderr.read() == 'came to its end\n'
  process.stderr.close()
  assert process.wait() == 0


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [
        (0.04, '0.0s'),
        (9.949, '9.9s'),
        (9.951, '10s'),
        (44.6, '45s'),
        (59.7, '1m00s'),
        (185, '3m05s'),
        (7620, '2h07m'),
    ],
)
def test_duration(seconds, text):
  assert terminal_lib.duration(seconds) == text
