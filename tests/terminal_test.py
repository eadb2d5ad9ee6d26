"""Lines, the progress line, durations, a reader that goes away."""

import io
import pathlib
import subprocess
import sys

import pytest

from gswinrmt_jax import terminal as terminal_lib


class _Screen(io.StringIO):

  def isatty(self):
    return True


def test_progress_is_redrawn_on_a_terminal_and_said_elsewhere():
  screen, pipe = _Screen(), io.StringIO()
  for stream in (screen, pipe):
    terminal = terminal_lib.Terminal(stream)
    terminal.progress('step 1')
    terminal.progress('step 2')
    terminal.say('done')
  assert screen.getvalue() == '\r\x1b[Kstep 1\r\x1b[Kstep 2\ndone\n'
  assert pipe.getvalue() == 'step 1\nstep 2\ndone\n'


def test_the_progress_line_never_wraps(monkeypatch):
  monkeypatch.setenv('COLUMNS', '9')
  screen = _Screen()
  terminal_lib.Terminal(screen).progress('epoch 1/2 step 3')
  assert screen.getvalue() == '\r\x1b[Kepoch 1/'


def test_a_file_that_a_run_can_do_without_is_named():
  stream = io.StringIO()
  with terminal_lib.Terminal(stream).sparing('curves.png'):
    raise OSError(28, 'No space left on device')
  assert stream.getvalue() == (
      'curves.png is not written (No space left on device)\n'
  )


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
