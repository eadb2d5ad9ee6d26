"""The paper's tables with ours, from runs that are made up."""

import pathlib

import made_up_runs
import pytest

from gswinrmt_jax.experiments import gather, paper_tables, variants
from gswinrmt_jax.models import cost

ROOT = pathlib.Path(__file__).parent.parent
_DASH = '\N{EN DASH}'
# As long as the schedule; validated as the table has it.
CURVE = [k / 100 for k in range(21, 71)]


def _setting(path):
  settings, _ = variants.group(gather.gather([path])[0])
  (found,) = (one for one in settings if one.benchmark)
  return found


@pytest.fixture
def setting(tmp_path):
  """RMT with seeds 0 and 1, Retention with 1 and 2, no SWAT."""
  for model, seed, test in (
      ('rmt', 0, 0.80),
      ('rmt', 1, 0.82),
      ('retention', 1, 0.85),
      ('retention', 2, 0.99),
  ):
    made_up_runs.write(
        tmp_path / f'{model}{seed}',
        f'cifar10_{model}',
        [value + seed / 100 for value in CURVE],
        seed=seed,
        test=test,
    )
  made_up_runs.write(tmp_path / 'rmt2', 'cifar10_rmt', CURVE[:20], seed=2)
  return _setting(tmp_path)


def _cells(table, row):
  line = table.splitlines()[2:][row]
  return [cell.strip() for cell in line.strip('|').split('|')]


def test_results(setting, monkeypatch):
  """Parameters are counted elsewhere."""

  def count(model, image_size):
    assert image_size == (32, 32)
    return cost.Cost(15_339_106 if model.arch.gate else 11_455_018, {})

  monkeypatch.setattr(cost, 'count', count)
  table = paper_tables.results(setting)
  assert _cells(table, 0)[6:] == ['85.98', '85.90', '0.8132']
  assert _cells(table, 1) == [
      '',
      'ours',
      '3',
      '11,455,018',
      '',
      '20 \N{PLUS-MINUS SIGN} 0',
      '70.50 \N{PLUS-MINUS SIGN} 0.71',  # of 70 and 71: not the partial run
      '81.00 \N{PLUS-MINUS SIGN} 1.41',
      '0.8450 \N{PLUS-MINUS SIGN} 0.0071',  # 1.25 less half of the accuracy
  ]
  minus = '\N{MINUS SIGN}'
  assert _cells(table, 2)[1:3] == ['difference', '']
  assert _cells(table, 2)[6:] == [f'{minus}15.48', f'{minus}4.90', '+0.0318']
  assert _cells(table, 4)[4] == '+33.91 %'
  assert _cells(table, 7) == ['', 'ours', '0', *[_DASH] * 6]


def test_curves(setting):
  table = paper_tables.curves(setting)
  assert table.startswith('| | | 10 | 20 | 30 | 40 | 50 | test |\n')
  assert _cells(table, 0)[2:] == '70.58 80.44 84.18 85.52 85.98 85.90'.split()
  cells = _cells(table, 1)
  # 30, 31 and 30 % at epoch 10; the third run has no epoch 30.
  assert cells[2] == '30.33 \N{PLUS-MINUS SIGN} 0.58'
  assert cells[4] == '50.50 \N{PLUS-MINUS SIGN} 0.71'
  assert _cells(table, 5)[2:] == [_DASH] * 6


def test_changes_are_paired_by_seed(setting):
  """Seed 1 alone has both: 85 less 82."""
  table = paper_tables.changes(setting)
  assert _cells(table, 0)[1:] == [
      'RMT to Retention',
      '+0.56',
      '+3.00',
      '1',
      'one seed: it cannot be told from noise',
  ]
  assert _cells(table, 1)[3:] == [_DASH, '0', 'not measured']


def test_gaps(setting):
  table = paper_tables.gaps(setting)
  minus = '\N{MINUS SIGN}'
  # 70 - 80 and 71 - 82.
  assert _cells(table, 0)[1:] == [
      '+0.08',
      f'{minus}10.50 \N{PLUS-MINUS SIGN} 0.71',
  ]


def test_without_a_test_split_there_is_no_gap(tmp_path):
  folder = tmp_path / 'run'
  made_up_runs.write(folder, 'cifar10_rmt', CURVE, test=None)
  (run,), _ = gather.gather([folder])
  assert run.finished and paper_tables.gap(run) is None


def test_a_test_on_validation_data_has_no_gap(tmp_path):
  folder = tmp_path / 'run'
  splits = ['--config.data.val_split=val', '--config.data.test_split=val']
  made_up_runs.write(folder, 'cifar10_rmt', CURVE, test=0.5, overrides=splits)
  (run,), _ = gather.gather([folder])
  assert paper_tables.test_accuracy(run) == 0.5
  assert paper_tables.gap(run) is None


def test_figures_lead_to_runs(setting):
  assert paper_tables.sources(setting) == (
      'Ours are runs: RMT [3] [4] [5]; Retention [1] [2].'
  )


def test_the_table_of_the_readme_is_made_from_results():
  table = paper_tables.curves(_setting(ROOT / 'results'))
  assert table in (ROOT / 'README.md').read_text()
