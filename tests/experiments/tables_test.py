"""Tests means, intervals and tables on made-up values and runs."""

import functools
import itertools
import json
import math
import pathlib
import re

import made_up_runs
import paper
import pytest
import runs as results
import tables
from tables import Change, difference, Mean, mean

from gswinrmt_jax.commands import recipe_files
from gswinrmt_jax.models import cost


def test_mean_and_deviation():
  """1, 2, 6: mean 3, squared deviations 4 + 1 + 9 = 14, over n - 1 = 2."""
  found = mean([1.0, 2.0, 6.0])
  assert (found.n, found.mean) == (3, 3.0)
  assert found.std == pytest.approx(math.sqrt(7))
  assert mean([0.5]) == Mean(1, 0.5, None)
  assert mean([]) is None


def test_interval_of_paired_differences():
  """Differences 1, 2, 3: mean 2, std 1; t(0.975, 2) is 4.30265 in tables."""
  first = {0: 10.0, 1: 20.0, 2: 5.0, 7: 0.0}
  second = {2: 8.0, 0: 11.0, 1: 22.0, 9: 100.0}
  found = difference(first, second)
  assert (found.n, found.mean) == (3, 2.0)
  half = 4.30265 / math.sqrt(3)
  assert found.interval == pytest.approx((2 - half, 2 + half), abs=1e-5)
  assert found.verdict == 'not more than noise'


def test_verdicts():
  def verdict(*values):
    zero = dict.fromkeys(range(len(values)), 0.0)
    return difference(zero, dict(enumerate(values))).verdict

  assert verdict(0.5) == 'one seed: it cannot be distinguished from seed noise'
  # Two seeds may agree by chance: the interval of 1.0 and 1.001 excludes 0.
  assert (
      verdict(1.0, 1.001)
      == '2 seeds: it cannot be distinguished from seed noise'
  )
  assert verdict(1.0, 1.1, 0.9) == 'more than noise: better'
  assert verdict(-1.0, -1.1, -0.9) == 'more than noise: worse'
  assert verdict(1.0, 1.1, -0.9) == 'not more than noise'
  assert verdict(0.0, 0.0, 0.0) == 'not more than noise'


def test_without_a_common_seed_there_is_no_difference():
  assert difference({0: 1.0}, {1: 1.0}) is None
  assert difference({0: 1.0}, {0: 3.0, 1: 1.0}) == Change(1, 2.0)


def test_cells():
  assert tables.percent(Mean(1, 0.859, None)) == '85.90'
  assert tables.percent(Mean(3, 0.859, 0.0012)) == '85.90 ± 0.12'
  assert tables.percent(None) == '\N{EN DASH}'
  assert tables.signed(0.5) == '+0.50'
  assert tables.signed(-0.5) == '\N{MINUS SIGN}0.50'
  assert tables.points(Change(1, 0.0056)) == '+0.56'
  found = tables.points(Change(3, 0.0056, (-0.0101, 0.0213)))
  assert found == '+0.56 (\N{MINUS SIGN}1.01 to +2.13)'
  assert tables.points(None) == '\N{EN DASH}'


TEXT = pathlib.Path(__file__).parents[3] / 'shared/papers/gated_swinrmt.md'
BENCHMARKS = (paper.MINI_IMAGENET, paper.CIFAR10)


# Differences in test accuracy printed in Tables 7 and 8, in points.
PRINTED_CHANGES = ((4.46, 2.02, 6.48), (0.56, -0.07, 0.49))


@pytest.mark.parametrize(
    ('benchmark', 'changes'),
    [*zip(BENCHMARKS, PRINTED_CHANGES, strict=True)],
)
def test_tables_agree(benchmark, changes):
  models = benchmark.models
  found = [models[b].test - models[a].test for a, b in paper.CHANGES]
  assert found == pytest.approx(changes, abs=1e-9)
  for printed in models.values():
    # Curves of Table 4 are rounded to a tenth.
    assert list(printed.curve.values())[-1] == pytest.approx(
        printed.val, abs=0.0501
    )


@pytest.mark.skipif(not TEXT.exists(), reason='the paper is not at hand')
def test_every_figure_stands_in_the_paper():
  lines = TEXT.read_text().replace('<b>', '').replace('</b>', '').splitlines()
  names = {'rmt': 'RMT', 'retention': 'Retention', 'swat': 'SWAT'}
  for benchmark in BENCHMARKS:
    for base, printed in benchmark.models.items():
      accuracies = list(printed.curve.values())
      found = [
          line
          for line in lines
          if line.startswith(names[base]) and _numbers(line) == accuracies
      ]
      assert len(found) == 1, accuracies
      results = [line for line in lines if f'{printed.test_loss:.4f}' in line]
      assert any(
          f'{printed.val:.2f}%' in line and f'{printed.test:.2f}%' in line
          for line in results
      )


def _numbers(line):
  """Returns the cells after the first, if they are numbers."""
  try:
    return [float(cell) for cell in line.split('\t')[1:]]
  except ValueError:
    return []


ROOT = pathlib.Path(__file__).parents[2]
_DASH = '\N{EN DASH}'
# One value per epoch of the schedule.
CURVE = [k / 100 for k in range(21, 71)]


def _setting(path):
  settings, _ = results.group(results.gather([path])[0])
  (found,) = (one for one in settings if one.benchmark)
  return found


@pytest.fixture
def paper_setting(tmp_path):
  """RMT with seeds 0, 1 and a partial 2, Retention with 1 and 2, no SWAT."""
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


def test_paper_results(paper_setting, monkeypatch):
  """Replaces the counting of parameters, which is tested elsewhere."""

  def count(model, image_size):
    assert image_size == (32, 32)
    return cost.Cost(15_339_106 if model.arch.gate else 11_455_018, {})

  monkeypatch.setattr(results.cost, 'count', count)
  table = tables.paper_results(paper_setting)
  assert _cells(table, 0)[6:] == ['85.98', '85.90', '0.8132']
  assert _cells(table, 1) == [
      '',
      'ours',
      '3',
      '11,455,018',
      '',
      '20 \N{PLUS-MINUS SIGN} 0',
      '70.50 \N{PLUS-MINUS SIGN} 0.71',  # 70 and 71, without the partial run
      '81.00 \N{PLUS-MINUS SIGN} 1.41',
      '0.8450 \N{PLUS-MINUS SIGN} 0.0071',  # 1.25 - accuracy / 2
  ]
  minus = '\N{MINUS SIGN}'
  assert _cells(table, 2)[1:3] == ['difference', '']
  assert _cells(table, 2)[6:] == [f'{minus}15.48', f'{minus}4.90', '+0.0318']
  assert _cells(table, 4)[4] == '+33.91 %'
  assert _cells(table, 7) == ['', 'ours', '0', *[_DASH] * 6]


def test_paper_curves(paper_setting):
  table = tables.paper_curves(paper_setting)
  assert table.startswith('| | | 10 | 20 | 30 | 40 | 50 | test |\n')
  assert _cells(table, 0)[2:] == '70.58 80.44 84.18 85.52 85.98 85.90'.split()
  cells = _cells(table, 1)
  # 30, 31 and 30 % at epoch 10; the third run has no epoch 30.
  assert cells[2] == '30.33 \N{PLUS-MINUS SIGN} 0.58'
  assert cells[4] == '50.50 \N{PLUS-MINUS SIGN} 0.71'
  assert _cells(table, 5)[2:] == [_DASH] * 6


def test_changes_are_paired_by_seed(paper_setting):
  """Only seed 1 has both: 85 - 82."""
  table = tables.paper_changes(paper_setting)
  assert _cells(table, 0)[1:] == [
      'RMT to Retention',
      '+0.56',
      '+3.00',
      '1',
      'one seed: it cannot be distinguished from seed noise',
  ]
  assert _cells(table, 1)[3:] == [_DASH, '0', 'not measured']


def test_without_a_test_split_there_is_no_gap(tmp_path):
  folder = tmp_path / 'run'
  made_up_runs.write(folder, 'cifar10_rmt', CURVE, test=None)
  (run,), _ = results.gather([folder])
  assert run.finished and run.gap is None


def test_a_test_on_validation_data_has_no_gap(tmp_path):
  folder = tmp_path / 'run'
  splits = ['--config.data.val_split=val', '--config.data.test_split=val']
  made_up_runs.write(folder, 'cifar10_rmt', CURVE, test=0.5, overrides=splits)
  (run,), _ = results.gather([folder])
  assert run.test_score == 0.5
  assert run.gap is None


def test_the_paper_s_tables_in_the_documents_are_made_from_results():
  """The default reading of both sets of pixels, and the one as in DeiT."""
  settings, _ = results.group(results.gather([ROOT / 'results'])[0])
  found = {}
  for one in filter(lambda setting: setting.benchmark, settings):
    augment, optimizer = one.config.augment, one.config.optimizer
    key = augment.rand_augment_set, augment.rand_augment_ops
    key = (one.runs[0].images, *key, optimizer.learning_rate)
    found.setdefault(key, []).append(one)
  page = (ROOT / 'docs' / 'reproduction.md').read_text()
  jpeg = 'JPEG of quality 75'
  for key in (
      ('', 'torchvision', 2, 3e-4),
      (jpeg, 'torchvision', 2, 3e-4),
      (jpeg, 'timm', 2, 1e-4),
  ):
    (setting,) = found[key]
    assert tables.paper_curves(setting) in page


def test_the_unfinished_reading_is_that_of_the_results():
  page = (ROOT / 'docs' / 'reproduction.md').read_text()
  part = page.partition('**Crop and flip alone, original pixels.**')[2]
  run = results.read(ROOT / 'results' / 'cifar10_rmt_plain.json')
  assert f'after epoch {run.epoch} of {run.config.num_epochs}' in part
  four, ten, last = (100 * run.curve[epoch] for epoch in (4, 10, run.epoch))
  said = f'{four:.2f}, {ten:.2f} and {last:.2f} % at epochs 4, 10 and'
  assert said in ' '.join(part.split())


def test_the_cost_of_the_jpeg_copy_is_made_from_results():
  """One row of each set of pixels, and their difference."""
  page = (ROOT / 'docs' / 'reproduction.md').read_text()
  part = page.partition('**What the JPEG copy costs.**')[2]
  table, text = part.split('\n\n')[1:3]
  head, _, *rows = table.splitlines()
  epochs = [int(cell) for cell in head.split(' | ')[1:-1]]
  runs = [
      results.read(ROOT / 'results' / folder / 'cifar10_rmt.json')
      for folder in ('', 'jpeg75')
  ]
  scores = [
      [100 * score for score in (*map(run.curve.get, epochs), run.test_score)]
      for run in runs
  ]
  gains = [one - other for one, other in zip(*scores, strict=True)]
  expected = [[f'{score:.2f}' for score in row] for row in scores]
  expected.append([tables.signed(gain) for gain in gains])
  assert [row.strip('| ').split(' | ')[1:] for row in rows] == expected
  gain = mean(
      runs[0].curve[epoch] - runs[1].curve[epoch] for epoch in range(10, 51)
  )
  assert f'{100 * gain.mean:.2f} points on average' in text


def test_the_readings_in_the_documents_are_made_from_results():
  page = (ROOT / 'docs' / 'reproduction.md').read_text()
  rows = page.partition('| reading | peak rate |')[2].split('\n\n')[0]
  head, _, *rows = rows.splitlines()
  epochs = [int(cell) for cell in head.split(' | ')[1:-1]]
  named = page.partition('The rows are')[2].partition('The command')[0]
  names = re.findall(r'`results/(.*?)\.json`', named)
  *rows, last = rows
  printed = [f'{x:.2f}' for x in paper.CIFAR10.models['rmt'].curve.values()]
  printed.append(f'{paper.CIFAR10.models["rmt"].test:.2f}')
  assert last.strip('| ').split(' | ')[-len(printed) :] == printed
  for name, row in zip(names, rows, strict=True):
    run = results.read(ROOT / 'results' / f'{name}.json')
    model, rate = run.config.model, run.config.optimizer.learning_rate
    figures = [*(run.curve.get(epoch) for epoch in epochs), run.test_score]
    cells = [
        tables.NOTHING if figure is None else f'{100 * figure:.2f}'
        for figure in figures
    ]
    reading, printed_rate, start, *printed = row.strip('| ').split(' | ')
    recipe = recipe_files.load(f'cifar10_rmt{reading.strip("`")}', [])
    assert recipe.augment == run.config.augment
    assert (float(printed_rate), start) == (rate, model.linear_start)
    assert printed == cells


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
  (found,), _ = results.group(results.gather([tmp_path])[0])
  return found


def test_each_switch_against_its_own(setting):
  changes = tables.ablate(setting, 'retention')
  found = {one.switch: one for one in changes}
  assert list(found) == [  # in the order of the table of switches
      'no_gate',
      'swiglu',
      'no_lce',
      'window_7',
      'window_7_no_shift',
      'window_4_no_shift',
  ]
  gate = found['no_gate'].change
  assert gate.n == 3 and gate.mean == pytest.approx(-29 / 300)
  # Standard deviation 1 / sqrt(3) points, over sqrt(3), times 4.30265.
  half = gate.interval[1] - gate.mean
  assert half == pytest.approx(0.0430265 / 3, abs=1e-6)
  assert gate.verdict == 'more than noise: worse'
  assert found['swiglu'].change.verdict == 'not more than noise'
  shift = found['window_7_no_shift']
  assert shift.against == 'retention,window_7'
  assert shift.change.mean == pytest.approx(0.01) and shift.change.n == 1
  # Without a test: validation at the last epoch that both have.
  assert found['no_lce'].figure == 'validation, epoch 2'
  assert found['no_lce'].change.mean == pytest.approx(-0.125)
  assert found['window_4_no_shift'].against is None
  assert tables.ablate(setting, 'swat') == []


def test_ablation_table(setting):
  changes = tables.ablate(setting, 'retention')
  lines = tables.ablation_table('retention', changes).splitlines()
  minus = '\N{MINUS SIGN}'
  assert lines[2] == (
      f'| `no_gate` | without G1 gate | `retention` | test | {minus}9.67 '
      f'({minus}11.10 to {minus}8.23) | 3 | more than noise: worse |'
  )
  assert lines[-1].count('\N{EN DASH}') == 3
  assert 'nothing to compare with' in lines[-1]


def test_variants(setting):
  lines = tables.variants(setting).splitlines()
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
  (found,), _ = results.group(results.gather([tmp_path])[0])
  row = tables.variants(found).splitlines()[2]
  assert row.startswith('| `rmt` | 2, 1 | 50.00 | 75.00 | \N{EN DASH} |')


def test_how_latency_was_measured_is_said(setting, tmp_path):
  assert tables.latency_note(setting) == ''
  for name, latency in (
      ('base0', '{"milliseconds": 2}'),
      (
          'base1',
          '{"milliseconds": 3, "spread": 0.0125, "device": "A", "threads": 2, '
          '"dtype": "float32"}',
      ),
  ):
    (tmp_path / name / 'latency.json').write_text(latency)
  (found,), _ = results.group(results.gather([tmp_path])[0])
  assert tables.latency_note(found) == (
      'Latency is that of one image: A, 2 threads; device unknown.'
  )


def test_of_many_epochs_every_few_and_the_last(tmp_path):
  made_up_runs.write(tmp_path / 'a', 'digits_rmt', [0.5] * 11)
  (found,), _ = results.group(results.gather([tmp_path])[0])
  head, _, row = tables.curves(found).splitlines()
  assert head == '| | 1 | 3 | 5 | 7 | 9 | 11 |' and row.count('50.00') == 6


def test_the_tables_of_results_are_made_from_the_records():
  text = (ROOT / 'docs' / 'reproduction.md').read_text()
  settings, _ = results.group(results.gather([ROOT / 'results'])[0])
  found = {
      (one.config.data.name, one.config.num_epochs): one
      for one in settings
      if not one.benchmark
  }
  assert tables.curves(found['tiny_imagenet_100', 4]) in text
  changes = tables.ablate(found['cifar10', 2], 'retention')
  assert [one.change.n for one in changes] == [3] * 4
  assert tables.ablation_table('retention', changes) in text
  assert (
      ' | '.join(
          f'{tables.average(runs, lambda run: run.test_score).mean:.2%}'
          for runs in found['digits', 12].variants.values()
      ).replace('%', ' %')
      in text
  )


def _best(name, run):
  return run.summary['best'][name]


def test_the_tables_of_camvid_are_made_from_the_records():
  text = (ROOT / 'docs' / 'segmentation.md').read_text()
  records, _ = results.gather([ROOT / 'results' / 'camvid'])
  (setting,), _ = results.group(records)
  assert [len(runs) for runs in setting.variants.values()] == [2] * 4
  assert tables.curves(setting) in text
  assert tables.classes(setting) in text
  for label, runs in setting.variants.items():
    cells = [f'{runs[0].cost.parameters:,}']
    scores = 'mean_iou', 'pixel_accuracy'
    for split, name in itertools.product(('val', 'test'), scores):
      figure = functools.partial(_best, f'{split}_{name}')
      cells.append(tables.percent(tables.average(runs, figure)))
    assert f'| {" | ".join(cells)} |' in text, label
  path = ROOT / 'results' / 'camvid' / 'stored_labels.json'
  stored = json.loads(path.read_text())
  for name in ('rmt', 'retention', 'swat', 'conv'):
    runs = [stored[f'{name}_s{seed}'] for seed in (0, 1)]
    cells = [
        tables.percent(mean(run[split][score] for run in runs))
        for split, score in itertools.product(('val', 'test'), scores)
    ]
    assert f'| {" | ".join(cells)} |' in text, name


def test_costs(setting, monkeypatch):
  monkeypatch.setattr(results.cost, 'count', lambda *_: _Cost)
  lines = tables.costs(setting).splitlines()
  assert 'MACs / 2^30' in lines[0]
  assert lines[2] == (
      f'| `retention` | 1,234 | 1.5 | 20 {PLUS_MINUS} 0 | \N{EN DASH} | '
      '\N{EN DASH} |'
  )


class _Cost:
  parameters = 1234
  macs = 3 * 2**29


def test_all_runs_shows_what_differs(tmp_path):
  for number, rate in enumerate((1e-3, 1e-4)):
    made_up_runs.write(
        tmp_path / f'run{number}',
        'ablation:retention,no_gate',
        [0.5, 0.25],
        test=0.375,
        overrides=[
            *SHORT,
            f'--config.optimizer.learning_rate={rate}',
            f'--config.model.depths=(1,1,{number + 1},1)',
        ],
    )
  found, _ = results.gather([tmp_path])
  scores = 'epoch 2 of 2 | 25.00 | 50.00 | 37.50 | 37.50 |'
  label = '`retention,no_gate`'
  assert tables.all_runs(found).splitlines() == [
      '| | run | model | `model.depths` | `optimizer.learning_rate` | progress '
      '| validation, last (%) | best | test, last (%) | best |',
      '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |',
      f'| [1] | `{tmp_path}/run0` | {label} | (1, 1, 1, 1) | 0.001 | {scores}',
      f'| [2] | `{tmp_path}/run1` | {label} | (1, 1, 2, 1) | 0.0001 | {scores}',
  ]


def test_of_many_fields_that_differ_data_set_and_seed_are_shown():
  found, _ = results.gather([ROOT / 'results'])
  head = tables.all_runs(found).splitlines()[0]
  assert head.startswith('| | run | model | `data.name` | `seed` | progress |')
