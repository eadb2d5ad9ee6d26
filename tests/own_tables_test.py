"""Tables of what was run, from runs that are made up."""

import pathlib

import made_up_runs
import pytest

from gswinrmt_jax.experiments import gather, own_tables, variants

ROOT = pathlib.Path(__file__).parent.parent
PLUS_MINUS = '\N{PLUS-MINUS SIGN}'
SHORT = ['--config.num_epochs=2']
TESTS = {
    'base': (0.50, 0.52, 0.54),
    'no_gate': (0.40, 0.43, 0.44),  # 10, 9 and 10 points below
    'swiglu': (0.51, 0.50, 0.54),
    'window_7': (0.60,),
    'window_7_no_shift': (0.61,),
}


@pytest.fixture
def setting(tmp_path):
  for switch, tests in TESTS.items():
    for seed, test in enumerate(tests):
      made_up_runs.write(
          tmp_path / f'{switch}{seed}',
          f'ablation:retention,{switch}',
          [0.25, 0.5],
          seed=seed,
          test=test,
          overrides=SHORT,
      )
  for switch, accuracies in (
      ('no_lce', [0.0625, 0.375]),
      ('window_4_no_shift', [0.25, 0.5]),
  ):
    made_up_runs.write(
        tmp_path / switch,
        f'ablation:retention,{switch}',
        accuracies,
        overrides=SHORT,
        summed_up=False,
    )
  (found,), _ = variants.group(gather.gather([tmp_path])[0])
  return found


def test_each_switch_against_its_own(setting):
  changes = own_tables.ablations(setting, 'retention')
  found = {one.variant.label.partition(',')[2]: one for one in changes}
  assert list(found) == [  # in the order of the table of switches
      'no_gate',
      'swiglu',
      'no_lce',
      'window_7',
      'window_7_no_shift',
      'window_4_no_shift',
  ]
  gate = found['no_gate'].found
  assert gate.n == 3 and gate.mean == pytest.approx(-29 / 300)
  # Deviation 1 / sqrt(3) points over sqrt(3), times 4.30265.
  assert gate.high - gate.mean == pytest.approx(0.0430265 / 3, abs=1e-6)
  assert gate.sentence == 'more than noise: worse'
  assert found['swiglu'].found.sentence == 'not more than noise'
  shift = found['window_7_no_shift']
  assert shift.against.label == 'retention,window_7'
  assert shift.found.mean == pytest.approx(0.01) and shift.found.n == 1
  # Not tested: validation at the last epoch that both have.
  assert found['no_lce'].figure == 'validation, epoch 2'
  assert found['no_lce'].found.mean == pytest.approx(-0.125)
  assert found['window_4_no_shift'].against is None
  assert own_tables.ablations(setting, 'swat') == []


def test_ablation_table(setting):
  changes = own_tables.ablations(setting, 'retention')
  lines = own_tables.ablation_table('retention', changes).splitlines()
  minus = '\N{MINUS SIGN}'
  assert lines[2] == (
      f'| `no_gate` | without G1 gate | `retention` | test | {minus}9.67 '
      f'({minus}11.10 to {minus}8.23) | 3 | more than noise: worse |'
  )
  assert lines[-1].count('\N{EN DASH}') == 3
  assert 'nothing to compare with' in lines[-1]


def test_variants(setting):
  lines = own_tables.variants(setting).splitlines()
  assert lines[2] == (
      f'| `retention` | 2, 2, 2 | 50.00 {PLUS_MINUS} 0.00 | 50.00 {PLUS_MINUS} '
      f'0.00 | 52.00 {PLUS_MINUS} 2.00 | 52.00 {PLUS_MINUS} 2.00 | 0.7400 '
      f'{PLUS_MINUS} 0.0100 | 0.9900 {PLUS_MINUS} 0.0100 | '
      f'\N{MINUS SIGN}2.00 {PLUS_MINUS} 2.00 | [1] [2] [3] |'
  )
  assert len(lines) == 2 + 7


def test_the_best_of_a_run_on_its_way_is_not_compared(tmp_path):
  for seed, accuracies in enumerate(([0.75, 0.5], [0.25])):
    made_up_runs.write(
        tmp_path / f'{seed}', 'digits_rmt', accuracies, seed=seed
    )
  (found,), _ = variants.group(gather.gather([tmp_path])[0])
  row = own_tables.variants(found).splitlines()[2]
  assert row.startswith('| `rmt` | 2, 1 | 50.00 | 75.00 | \N{EN DASH} |')


def test_how_latency_was_measured_is_said(setting, tmp_path):
  assert own_tables.latency_note(setting) == ''
  for name, latency in (
      ('base0', '{"milliseconds": 2}'),
      (
          'base1',
          '{"milliseconds": 3, "spread": 0.0125, "device": "A", "threads": 2, '
          '"dtype": "float32"}',
      ),
  ):
    (tmp_path / name / 'latency.json').write_text(latency)
  (found,), _ = variants.group(gather.gather([tmp_path])[0])
  assert own_tables.latency_note(found) == (
      'Latency is that of one image: A, float32, 2 threads; device unknown. '
      'Half the distance of the quartiles of its rounds is at most 1.2 % of it.'
  )


def test_curves(setting):
  lines = own_tables.curves(setting).splitlines()
  assert lines[0] == '| | 1 | 2 |'
  assert lines[2] == (
      f'| `retention` | 25.00 {PLUS_MINUS} 0.00 | 50.00 {PLUS_MINUS} 0.00 |'
  )
  assert '| `retention,no_lce` | 6.25 | 37.50 |' in lines


def test_of_many_epochs_every_few_and_the_last(tmp_path):
  made_up_runs.write(tmp_path / 'a', 'digits_rmt', [0.5] * 11)
  (found,), _ = variants.group(gather.gather([tmp_path])[0])
  head, _, row = own_tables.curves(found).splitlines()
  assert head == '| | 1 | 3 | 5 | 7 | 9 | 11 |' and row.count('50.00') == 6


def test_the_tables_of_the_readme_are_made_from_results():
  text = (ROOT / 'README.md').read_text()
  settings, _ = variants.group(gather.gather([ROOT / 'results'])[0])
  found = {one.config.data.name: one for one in settings if not one.benchmark}
  assert own_tables.curves(found['tiny_imagenet_100']) in text
  changes = own_tables.ablations(found['cifar10'], 'retention')
  assert [one.found.n for one in changes] == [3] * 4
  assert own_tables.ablation_table('retention', changes) in text
  assert (
      ' | '.join(
          f'{one.mean(lambda run: run.tested("accuracy")).mean:.2%}'
          for one in found['digits'].variants
      ).replace('%', ' %')
      in text
  )


def test_small_models_have_a_smaller_unit(setting, monkeypatch):
  monkeypatch.setattr(_Cost, 'macs', 2**30 - 2**20)
  monkeypatch.setattr(variants.cost, 'count', lambda *_: _Cost)
  lines = own_tables.costs(setting).splitlines()
  assert 'MACs / 2^20' in lines[0] and '| 1,234 | 1023 |' in lines[2]


def test_costs(setting, monkeypatch):
  monkeypatch.setattr(variants.cost, 'count', lambda *_: _Cost)
  lines = own_tables.costs(setting).splitlines()
  assert 'MACs / 2^30' in lines[0]
  assert lines[2] == (
      f'| `retention` | 1,234 | 1.5 | 20 {PLUS_MINUS} 0 | \N{EN DASH} | '
      '\N{EN DASH} |'
  )


class _Cost:
  parameters = 1234
  macs = 3 * 2**29
