"""The console command and its help."""

import subprocess
import sys

import pytest

from gswinrmt_jax.commands import main

COMMANDS = (
    'train',
    'prepare',
    'evaluate',
    'label-maps',
    'experiment',
    'report',
)


def test_help_lists_every_command(capsys):
  assert main.main(['--help']) == 0
  text = capsys.readouterr().out
  for name in COMMANDS:
    assert f'\n  {name} ' in text
  assert main.main([]) == 2


@pytest.mark.parametrize('name', COMMANDS)
def test_each_command_has_a_help_that_fits_the_screen(capsys, name):
  try:
    status = main.main([name, '--help'])
  except SystemExit as stop:  # argparse's way
    status = stop.code
  assert not status
  text = capsys.readouterr().out
  assert text.startswith(f'usage: gswinrmt {name}')
  assert max(map(len, text.splitlines())) <= 80
  assert 'absl' not in text and 'helpfull' not in text


@pytest.mark.parametrize(
    ('argv', 'said'),
    [
        (['evalute'], "gswinrmt: no command 'evalute': did you mean evaluate?"),
        (['xyz'], "gswinrmt: no command 'xyz': try train, prepare, evaluate"),
        (['evaluate'], 'the following arguments are required: RUN'),
        (['evaluate', 'x', '--stp=1'], 'unrecognized arguments: --stp=1'),
        (['evaluate', 'x', '--image-size=big'], "invalid int value: 'big'"),
        (['train', '--confg=a'], "gswinrmt: unknown argument '--confg=a'"),
    ],
)
def test_mistakes_are_one_line(capsys, argv, said):
  assert main.main(argv) == 2
  error = capsys.readouterr().err
  assert said in error and error.startswith('gswinrmt: ')
  assert error.count('\n') == 1


def test_help_does_not_wait_for_heavy_libraries():
  program = (
      'import sys\n'
      'from gswinrmt_jax.commands import main, train, evaluate, prepare\n'
      'main.main(["train", "--help"])\n'
      'heavy = "tensorflow_datasets grain matplotlib orbax tensorboardX"\n'
      'print(sorted(set(heavy.split()) & set(sys.modules)), file=sys.stderr)\n'
  )
  done = subprocess.run(
      [sys.executable, '-c', program],
      capture_output=True,
      text=True,
      check=True,
  )
  assert done.stderr == '[]\n'
