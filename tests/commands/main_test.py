"""Tests the console command, its help, and its subcommands' arguments."""

import pathlib
import subprocess
import sys

import pytest

import gswinrmt_jax
from gswinrmt_jax.commands import arguments, main, summarize
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.models import cost, named

COMMANDS = tuple(main._COMMANDS)


def test_help_lists_every_command(capsys):
  assert main.main(['--help']) == 0
  text = capsys.readouterr().out
  for name in COMMANDS:
    assert f'\n  {name} ' in text
  assert main.main([]) == 2


def test_the_package_is_a_program_and_has_a_version():
  for program in ('gswinrmt_jax', 'gswinrmt_jax.commands.main'):
    done = subprocess.run(
        [sys.executable, '-m', program, '--version'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f'gswinrmt_jax {gswinrmt_jax.__version__}\n'


@pytest.mark.parametrize('name', COMMANDS)
def test_each_command_has_a_help_that_fits_the_screen(capsys, name):
  try:
    status = main.main([name, '--help'])
  except SystemExit as stop:  # argparse exits
    status = stop.code
  assert not status
  text = capsys.readouterr().out
  assert text.startswith(f'usage: gswinrmt {name}')
  assert max(map(len, text.splitlines())) <= 80
  assert 'absl' not in text and 'helpfull' not in text


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


@pytest.fixture
def calls(monkeypatch):
  found = []
  monkeypatch.setattr(
      evaluate_run,
      'evaluate_run',
      lambda folder, **settings: found.append((folder, settings)),
  )
  return found


def test_options_of_evaluate(calls):
  assert main.main(['evaluate', 'runs/a']) == 0
  argv = (
      'evaluate r --step 351 --split val --image-size 48 --batch-size 7 '
      '--data=a --data-dir=d --weights=ema --out=o.json'
  )
  assert main.main(argv.split()) == 0
  (folder, default), (_, chosen) = calls
  assert folder == pathlib.Path('runs/a')
  assert (default['step'], default['split']) == ('best', 'test')
  assert (
      chosen.items()
      >= {
          'step': 351,
          'which': 'ema',
          'data': 'a',
          'split': 'val',
          'image_size': 48,
          'batch_size': 7,
          'data_dir': 'd',
          'out': pathlib.Path('o.json'),
      }.items()
  )


def test_summarize_knows_every_model():
  assert summarize._SETTINGS.keys() == named.MODELS.keys()


def test_a_row_of_summarize(capsys, monkeypatch):
  """The counts are those that `cost_test` expects of this model and size."""
  asked = []

  def count(model, size):
    asked.append((model.arch, model.num_classes, size))
    layers = {'layer norm': 10_536_960, 'batch norm': 2_860_032}
    products = {
        'convolution': 537_535_488,
        'linear': 1_825_021_952,
        'attention': 274_663_424,
    }
    return cost.Cost(14_334_216, layers | products)

  monkeypatch.setattr(cost, 'count', count)
  assert main.main(['summarize', 'rmt_t']) == 0
  head, row = capsys.readouterr().out.splitlines()
  assert ' '.join(row.split()) == (
      'rmt_t 1000 224 14,334,216 2.651 2.469 5.288 14 M, 2.5 x 2^30'
  )
  assert head.index('parameters') + len('parameters') == row.index('216') + 3
  # The paper's multiply-accumulates hold for 224 pixels only.
  assert main.main(['summarize', 'rmt_t', '--image-size=64']) == 0
  assert capsys.readouterr().out.splitlines()[1].endswith('   14 M')
  model = named.MODELS['rmt_t'], 1000
  assert asked == [(*model, (224, 224)), (*model, (64, 64))]


def test_patterns_of_summarize(capsys, monkeypatch):
  monkeypatch.setattr(cost, 'count', lambda *args: cost.Cost(7, {}))
  assert main.main(['summarize', 'retention_*', 'rmt_?', 'rmt_s']) == 0
  _, *rows = capsys.readouterr().out.splitlines()
  names = [row.split()[0] for row in rows]
  retention, released = ['retention_compact', 'retention_large'], 'tsbl'
  assert names == retention + [f'rmt_{size}' for size in released]


def test_words_after_overrides():
  """A field may take the next word; a flag that is set to False does not."""
  argv = ['--config.seed', '3', '--noconfig.augment.flip', 'smoke', '--out=x']
  assert arguments.take_overrides(argv) == (
      ['--config.seed=3', '--noconfig.augment.flip'],
      ['smoke', '--out=x'],
  )
