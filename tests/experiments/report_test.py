"""Tests reports: statistics, and the tables and pictures of runs."""

import dataclasses
import json
import math
import pathlib
import re

import ablations
import collect
import made_up_runs
import numpy as np
import paper
import pytest
import report
import runs as results
import tables
from tables import Change, difference, Mean, mean

from gswinrmt_jax.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
SHORT = ['--config.num_epochs=2']
NORMAL = '--config.model.linear_start=normal'
DASH, MINUS, PLUS_MINUS = '\N{EN DASH}', '\N{MINUS SIGN}', '\N{PLUS-MINUS SIGN}'


# Statistics, against values calculated by hand.


def test_mean_and_deviation():
  """1, 2, 6: mean 3, squared deviations 4 + 1 + 9 = 14, over n - 1 = 2."""
  found = mean([1.0, 2.0, 6.0])
  assert (found.n, found.mean) == (3, 3.0)
  assert found.std == pytest.approx(math.sqrt(7))
  assert mean([0.5]) == Mean(1, 0.5, None)
  assert mean([]) is None
  # The loss of weights that are not finite.
  assert math.isnan(mean([0.5, math.nan, 1.0]).std)


def test_interval_of_paired_differences():
  """Differences 1, 2, 3: mean 2, std 1; t(0.975, 2) is 4.30265 in tables."""
  first = {0: 10.0, 1: 20.0, 2: 5.0, 7: 0.0}
  second = {2: 8.0, 0: 11.0, 1: 22.0, 9: 100.0}
  found = difference(first, second)
  assert (found.n, found.mean) == (3, 2.0)
  half = 4.30265 / math.sqrt(3)
  assert found.interval == pytest.approx((2 - half, 2 + half), abs=1e-5)
  assert difference({0: 1.0}, {1: 1.0}) is None
  assert difference({0: 1.0}, {0: 3.0, 1: 1.0}) == Change(1, 2.0)


@pytest.mark.parametrize(
    ('values', 'verdict'),
    [
        ([0.5], 'one seed: it cannot be distinguished from seed noise'),
        # Two seeds may agree by chance: this interval excludes 0.
        ([1.0, 1.001], '2 seeds: it cannot be distinguished from seed noise'),
        ([1.0, 1.1, 0.9], 'more than noise: better'),
        ([-1.0, -1.1, -0.9], 'more than noise: worse'),
        ([1.0, 1.1, -0.9], 'not more than noise'),
        ([0.0, 0.0, 0.0], 'not more than noise'),
        ([-1.0, math.nan, -0.9], 'not more than noise'),
    ],
)
def test_verdicts(values, verdict):
  zero = dict.fromkeys(range(len(values)), 0.0)
  assert difference(zero, dict(enumerate(values))).verdict == verdict


# Runs that are made up.


class Cost:
  parameters, macs = 1234, 3 * 2**29


@pytest.fixture
def counted(monkeypatch):
  """Replaces counting, which is tested elsewhere, by one cost for all."""
  monkeypatch.setattr(results.cost, 'count', lambda *_: Cost)


@pytest.fixture
def write(tmp_path):
  """Writes a run of two epochs, unless `overrides` say otherwise."""

  def write_one(name, spec, accuracies=(0.25, 0.5), overrides=SHORT, **how):
    folder = tmp_path / 'runs' / name
    return made_up_runs.write(
        folder, spec, accuracies, overrides=overrides, **how
    )

  return write_one


@pytest.fixture
def grouped(write, tmp_path):
  """Writes runs, each a spec and what else `write` takes; groups them."""

  def make(*runs):
    for number, (spec, how) in enumerate(runs):
      write(f'{number}', spec, **how)
    return results.group(results.gather([tmp_path])[0])

  return make


def _cells(table, row):
  line = table.splitlines()[2:][row]
  return [cell.strip() for cell in line.strip('|').split('|')]


def test_a_report(counted, write, tmp_path):
  for seed in range(3):
    accuracies = [0.25, 0.5 + seed / 10]
    for model, test in (('rmt', 0.8), ('retention', 0.85)):
      how = {'seed': seed, 'test': test + seed / 100}
      write(f'{model}_s{seed}', f'cifar10_{model}', accuracies, **how)
    how = {'seed': seed, 'test': 0.75 + seed / 100}
    write(f'no_gate_s{seed}', 'ablation:retention,no_gate', **how)
  runs = tmp_path / 'runs'
  (runs / 'rmt_s1' / 'config.json').write_text('{')
  path = report.write([runs], tmp_path / 'out')
  text = path.read_text()
  assert re.findall(r'^#+ (.*)$', text, re.MULTILINE) == [
      'Report',
      'All runs',
      'cifar10, compact models',
      'Table 5',
      'Table 6: validation accuracy (%) by epoch',
      'Tables 7 and 8: test accuracy (points)',
      'All variants',
      'Cost',
      'Retention, one component changed',
      'What is missing',
  ]
  assert 'recipe for CIFAR-10: num_epochs is 50 there and 2 here.' in text
  assert f'| `rmt` | 1,234 | 1.5 | 20 {PLUS_MINUS} 0 | {DASH} |' in text
  assert '- cifar10, compact models: no run of SWAT' in text
  assert f'- {runs / "rmt_s1" / "config.json"} cannot be read: ' in text
  # Every result cites its run, and every run is listed with its folder.
  cited = {int(number) for number in re.findall(r'\[(\d+)\]', text)}
  listed = re.findall(r'^\| \[(\d+)\] \| `(.*?)`', text, re.MULTILINE)
  assert cited == {int(number) for number, _ in listed} == set(range(1, 9))
  assert dict(listed)['7'] == str(runs / 'rmt_s0')
  names = {file.name for file in path.parent.iterdir()}
  assert names == {'report.md', 'curves_1.png'}


def test_a_segmenter_of_so_many_steps(counted, write, tmp_path):
  """Its scores are mean IoU, and the test IoU of each class has a table."""
  steps = ['--config.num_epochs=0', '--config.num_steps=20']
  for seed, test in enumerate((0.25, 0.375)):
    how = {'seed': seed, 'test': test, 'classes': 11, 'overrides': steps}
    write(f'rmt_s{seed}', 'camvid:rmt', [0.125, 0.5], **how)
  steps[1] = '--config.num_steps=2000'
  write('longer', 'camvid:rmt', [0.5], classes=11, overrides=steps)
  path = report.write([tmp_path / 'runs'], tmp_path / 'out')
  text = path.read_text()
  assert '20 steps of camvid at crops of 224x160, batch 8, float32' in text
  assert 'Scores are the mean IoU over the classes.' in text
  assert '### Validation mean IoU (%) by epoch\n\n| | 1 | 2 |' in text
  assert '`rmt`, seed 0: step 10 of 2,000 [1]\n' in text
  pixels = f'| 56.25 {PLUS_MINUS} 8.84 |'  # of 0.5 and 0.625
  (row,) = re.findall(r'\| `rmt` \| 2, 2 \|.*', text)
  assert 'test pixel accuracy (%)' in text and pixels in row
  heading = '### Test IoU (%) by class, best epoch\n\n| | `rmt` |\n'
  table = text.partition(f'{heading}| --- | --- |\n')[2]
  assert table.startswith(f'| class 0 | 31.25 {PLUS_MINUS} 8.84 |\n| class 1 |')
  assert f'\n| class 10 | {DASH} |\n' in table
  pictures = sorted(one.name for one in path.parent.glob('*.png'))
  assert pictures == ['curves_1.png', 'curves_2.png']


def test_a_setting_without_a_test_split(counted, write, tmp_path):
  split = ['--config.data.val_split=val', '--config.data.test_split=val']
  folder = write('a', 'digits_rmt', test=0.5, overrides=[*SHORT, *split])
  text = report.write([folder], tmp_path / 'out').read_text()
  assert '### Validation accuracy (%) by epoch' in text
  assert '| `rmt` | 25.00 | 50.00 |' in text
  assert 'CIFAR-10: augment.' in text and 'batch_size is 128 there' in text
  assert 'There is no test split' in text
  assert results.read(folder).gap is None  # validation less test


def test_the_paper_s_tables_of_made_up_runs(grouped, monkeypatch):
  """RMT with seeds 0, 1 and a partial 2, Retention with 1 and 2, no SWAT."""
  monkeypatch.setattr(
      results.cost,
      'count',
      lambda model, _: type(
          'Cost',
          (),
          {'parameters': 15_339_106 if model.arch.gate else 11_455_018},
      ),
  )
  curve = np.arange(21, 71) / 100  # one value per epoch of the schedule
  runs = [
      (f'cifar10_{model}', {'seed': seed, 'test': test, 'overrides': ()})
      for model, seed, test in (
          ('rmt', 0, 0.80),
          ('rmt', 1, 0.82),
          ('retention', 1, 0.85),
          ('retention', 2, 0.99),
      )
  ]
  for _, how in runs:
    how['accuracies'] = (curve + how['seed'] / 100).tolist()
  part = {'accuracies': curve[:20].tolist(), 'seed': 2, 'overrides': ()}
  (setting,), _ = grouped(*runs, ('cifar10_rmt', part))

  table = tables.paper_results(setting)
  assert _cells(table, 0)[6:] == ['85.98', '85.90', '0.8132']
  assert _cells(table, 1)[1:] == [
      'ours',
      '2',
      '11,455,018',
      '',
      f'20 {PLUS_MINUS} 0',
      f'70.50 {PLUS_MINUS} 0.71',  # 70 and 71, without the partial run
      f'81.00 {PLUS_MINUS} 1.41',
      f'0.8450 {PLUS_MINUS} 0.0071',  # 1.25 - accuracy / 2
  ]
  assert _cells(table, 2)[1:3] == ['difference', '']
  assert _cells(table, 2)[6:] == [f'{MINUS}15.48', f'{MINUS}4.90', '+0.0318']
  assert _cells(table, 4)[4] == '+33.91 %'
  assert _cells(table, 7) == ['', 'ours', '0', *[DASH] * 6]

  table = tables.paper_curves(setting)
  assert table.startswith('| | | 10 | 20 | 30 | 40 | 50 | test |\n')
  assert _cells(table, 0)[2:] == '70.58 80.44 84.18 85.52 85.98 85.90'.split()
  # 30, 31 and 30 % at epoch 10; the third run has no epoch 30.
  assert _cells(table, 1)[2] == f'30.33 {PLUS_MINUS} 0.58'
  assert _cells(table, 1)[4] == f'50.50 {PLUS_MINUS} 0.71'
  assert _cells(table, 5)[2:] == [DASH] * 6

  table = tables.paper_changes(setting)  # Only seed 1 has both: 85 - 82.
  assert _cells(table, 0)[1:4] == ['RMT to Retention', '+0.56', '+3.00']
  assert _cells(table, 1)[3:] == [DASH, '0', 'not measured']


def test_each_switch_against_its_own(grouped):
  tests = {
      'base': (0.50, 0.52, 0.54),
      'no_gate': (0.40, 0.43, 0.44),  # 10, 9 and 10 points below
      'window_7': (0.60,),
      'window_7_no_shift': (0.61,),
  }
  runs = [
      (f'ablation:retention,{switch}', {'seed': seed, 'test': test})
      for switch, scores in tests.items()
      for seed, test in enumerate(scores)
  ]
  for switch, last in (('no_lce', 0.375), ('window_4_no_shift', 0.5)):
    how = {'accuracies': [0.25, last], 'summed_up': False}
    runs.append((f'ablation:retention,{switch}', how))
  (setting,), _ = grouped(*runs)
  changes = tables.ablate(setting, 'retention')
  found = {one.switch: one for one in changes}
  assert list(found) == [  # in the order of the table of switches
      'no_gate',
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
  shift = found['window_7_no_shift']
  assert shift.against == 'retention,window_7'
  assert shift.change.mean == pytest.approx(0.01) and shift.change.n == 1
  # Without a test: validation at the last epoch that both have.
  assert found['no_lce'].figure == 'validation, epoch 2'
  assert found['no_lce'].change.mean == pytest.approx(-0.125)
  lines = tables.ablation_table('retention', changes).splitlines()
  assert lines[2] == (
      f'| `no_gate` | without G1 gate | `retention` | test | {MINUS}9.67 '
      f'({MINUS}11.10 to {MINUS}8.23) | 3 | more than noise: worse |'
  )
  assert lines[-1].count(DASH) == 3
  (line,) = (one for one in report.missing(setting) if 'to compare' in one)
  assert line == '`retention,window_4_no_shift` [10] has no run to compare with'
  lines = tables.variants(setting).splitlines()
  assert lines[2] == (
      f'| `retention` | 2, 2, 2 | 50.00 {PLUS_MINUS} 0.00 | 50.00 {PLUS_MINUS} '
      f'0.00 | 52.00 {PLUS_MINUS} 2.00 | 52.00 {PLUS_MINUS} 2.00 | 0.7400 '
      f'{PLUS_MINUS} 0.0100 | 0.9900 {PLUS_MINUS} 0.0100 | '
      f'{MINUS}2.00 {PLUS_MINUS} 2.00 | [1] [2] [3] |'
  )


def test_runs_on_their_way(grouped):
  """They are listed as missing; the best of one is not compared."""
  (setting,), _ = grouped(
      ('digits_rmt', {'accuracies': [0.75, 0.5], 'summed_up': False}),
      ('digits_rmt', {'accuracies': [0.25], 'test': 0.5, 'seed': 1}),
  )
  assert list(report.missing(setting)) == [
      '`rmt`, seed 0: epoch 2 of 2, not summed up [1]',
      '`rmt`, seed 1: epoch 1 of 2 [2]',
  ]
  assert setting.runs[1].tested('accuracy') is None  # in spite of its summary
  row = tables.variants(setting).splitlines()[2]
  assert row.startswith(f'| `rmt` | 2, 1 | 50.00 | 75.00 | {DASH} |')


def test_of_many_epochs_every_few_and_the_last(grouped):
  (setting,), _ = grouped(('digits_rmt', {'accuracies': [0.5] * 11}))
  head, _, row = tables.curves(setting).splitlines()
  assert head == '| | 1 | 3 | 5 | 7 | 9 | 11 |' and row.count('50.00') == 6


def test_all_runs_shows_what_differs(write, tmp_path):
  for number, rate in enumerate((1e-3, 1e-4)):
    fields = [
        f'--config.optimizer.learning_rate={rate}',
        f'--config.model.depths=(1,1,{number + 1},1)',
    ]
    how = {'test': 0.375, 'overrides': [*SHORT, *fields]}
    write(f'{number}', 'ablation:retention,no_gate', [0.5, 0.25], **how)
  runs, folder = results.gather([tmp_path])[0], tmp_path / 'runs'
  scores = 'epoch 2 of 2 | 25.00 | 50.00 | 37.50 | 37.50 |'
  label = '`retention,no_gate`'
  assert tables.all_runs(runs).splitlines() == [
      '| | run | model | `model.depths` | `optimizer.learning_rate` | progress '
      '| validation, last (%) | best | test, last (%) | best |',
      '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |',
      f'| [1] | `{folder}/0` | {label} | (1, 1, 1, 1) | 0.001 | {scores}',
      f'| [2] | `{folder}/1` | {label} | (1, 1, 2, 1) | 0.0001 | {scores}',
  ]


def test_of_many_fields_that_differ_data_set_and_seed_are_shown():
  recorded, _ = results.group(results.gather([ROOT / 'results'])[0])
  runs = [run for setting in recorded for run in setting.runs]
  head = tables.all_runs(runs).splitlines()[0]
  assert head.startswith('| | run | model | `data.name` | `seed` | progress |')


def _lines(figure):
  """Returns {label: (points, colour)} of the lines in the legend."""
  (axes,) = figure.axes
  lines = {}
  for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
    line = handle if hasattr(handle, 'get_xydata') else handle.lines[0]
    lines[label] = (np.asarray(line.get_xydata(), float), line.get_color())
  return lines


def test_curves_are_drawn_with_the_deviation_and_the_paper_s_points(grouped):
  runs = []
  for seed in range(2):
    how = {'seed': seed, 'accuracies': [0.25, 0.5 + seed / 10]}
    runs += [('cifar10_rmt', {'seed': seed}), ('cifar10_swat', how)]
  (setting,), _ = grouped(*runs)
  figure = report.draw_curves(setting)
  lines = _lines(figure)
  (points, color), (printed, papers) = lines['rmt'], lines['rmt, paper']
  np.testing.assert_allclose(points, [[1, 25], [2, 50]])
  np.testing.assert_allclose(printed[0], [10, 70.58])
  points, other = lines['swat']
  np.testing.assert_allclose(points, [[1, 25], [2, 55]])
  assert color == papers != other
  (bars,) = (c for c in figure.axes[0].containers if c.get_label() == 'swat')
  half = 10 / 2**0.5  # standard deviation of 50 and 60
  ends = bars.lines[2][0].get_segments()[1][:, 1]
  np.testing.assert_allclose(ends, [55 - half, 55 + half])


def test_of_many_variants_the_bases_have_curves(grouped):
  names = [f'swat,{name}' for name in list(ablations.SWITCHES['swat'])[:13]]
  names.append('rmt,base')
  (setting,), _ = grouped(*((f'ablation:{name}', {}) for name in names))
  lines = _lines(report.draw_curves(setting))
  assert [name for name in lines if 'paper' not in name] == ['rmt', 'swat']


# Reading and grouping.


def test_collected_figures_are_those_of_the_run(write, tmp_path):
  folder = write('a', 'cifar10_rmt', test=0.625)
  config = json.loads((folder / 'config.json').read_text())
  config['data']['dir'], config['init_from'] = '/place', '/place/first'
  (folder / 'config.json').write_text(json.dumps(config))
  command = ['/place/train.py', '--config=/place/one.py:smoke', '-workdir']
  command += ['/place', '--config.data.name=/place/my own/', 'runs/x']
  start = {'command': command, 'config': config}
  environment = [{**start, 'device': 'A'}, {**start, 'device': 'B'}]
  (folder / 'environment.json').write_text(json.dumps(environment))
  path = tmp_path / 'collected.json'
  path.write_text(json.dumps(collect.collect(folder)))
  assert '/place' not in path.read_text()
  said = json.loads(path.read_text())['environment'][0]['command']
  assert said == [
      *('train.py', '--config=one.py:smoke', '-workdir', 'place'),
      *('--config.data.name=my own/', 'runs/x'),
  ]
  (run,), _ = results.gather([folder, tmp_path / 'runs'])  # once, named twice
  assert run.curve == {1: 0.25, 2: 0.5} and run.finished
  assert run.test_score == 0.625 and run.gap == -0.125
  assert run.image_size == (32, 32) and len(run.class_names) == 10
  assert run.device == 'B'
  (again,), _ = results.gather([path])
  assert again.source == path and again.config.model == run.config.model
  for name in ('epochs', 'summary', 'class_names', 'image_size'):
    assert getattr(again, name) == getattr(run, name), name


def test_label_maps_and_data_are_collected_by_name(write):
  folder = write('a', 'cifar10_rmt', test=0.5)
  summary = json.loads((folder / 'summary.json').read_text())
  summary['data'] = '/place/own'
  (folder / 'summary.json').write_text(json.dumps(summary))
  config = json.loads((folder / 'config.json').read_text())
  config['data']['label_maps'] = '/place/maps'
  (folder / 'config.json').write_text(json.dumps(config))
  found = collect.collect(folder)  # interrupted before it named its machine
  assert found['environment'] == []
  assert found['config']['data']['label_maps'] == 'maps'
  assert found['summary']['data'] == 'own'


def test_collected_runs_are_repeats_if_they_started_from_the_same_weights(
    write, tmp_path
):
  """Many weights are called model.safetensors; the path tells them apart."""
  paths = []
  for number, origin in enumerate('aab'):
    folder = write(f'run{number}', 'cifar10_rmt', seed=number)
    config = json.loads((folder / 'config.json').read_text())
    config['init_from'] = f'/place/{origin}/model.safetensors'
    (folder / 'config.json').write_text(json.dumps(config))
    paths.append(tmp_path / f'{number}.json')
    paths[-1].write_text(json.dumps(collect.collect(folder)))
  # A folder belongs to the same setting as what is collected of another.
  runs, _ = results.gather([tmp_path / 'runs' / 'run0', *paths[1:]])
  settings, _ = results.group(runs)
  assert sorted(len(setting.runs) for setting in settings) == [1, 2]
  named = [tables.apart(setting, settings) for setting in settings]
  assert all('`init_from` model.safetensors@' in one for one in named)
  assert len({*named}) == 2


def test_class_folders_that_moved_are_the_same_data(grouped):
  settings, _ = grouped(
      *(
          ('cifar10_rmt', {'seed': seed, 'overrides': [*SHORT, place]})
          for seed, place in enumerate(
              ('--config.data.name=/a/pets', '--config.data.name=/b/pets')
          )
      )
  )
  assert [len(setting.runs) for setting in settings] == [2]


def test_the_best_weights_may_be_an_average():
  """Validation and test are of the same weights of the same epoch."""
  run = results.read(ROOT / 'results' / 'cifar10_small_restart.json')
  assert run.summary['best']['weights'] == 'ema'
  assert run.best_validation == run.summary['best']['val_ema_accuracy']
  best = run.tested('accuracy', 'best')
  assert best == run.summary['best']['test_ema_accuracy']
  assert run.test_score == run.summary['last']['test_accuracy']


def test_a_summary_of_an_earlier_step_is_none(write):
  folder = write('a', 'cifar10_rmt', test=0.5)
  entry = {'kind': 'epoch', 'step': 30, 'epoch': 3, 'val_accuracy': 0.75}
  with (folder / 'metrics.jsonl').open('a') as file:
    file.write(json.dumps({**entry, 'steps': 10, 'seconds': 7.0}) + '\n{"kin')
  run = results.read(folder)
  assert run.summary is None and run.test_score is None and run.epoch == 3
  assert run.seconds_per_epoch == 20.0  # the median of 20, 20, 7
  epochs = [{**entry, 'epoch': 12} for entry in run.epochs]  # every fourth
  assert dataclasses.replace(run, epochs=epochs).seconds_per_epoch == 5.0


def test_what_is_no_run_and_what_cannot_be_read(write, tmp_path):
  weights = tmp_path / 'weights'
  weights.mkdir()
  (weights / 'config.json').write_text('{}')
  (tmp_path / 'other.json').write_text('[1]')
  with pytest.raises(UserError, match='there is no run in'):
    results.gather([tmp_path])
  with pytest.raises(UserError, match='nowhere: no such file or folder'):
    results.gather([tmp_path / 'nowhere'])
  whole, lost = (write(name, 'cifar10_rmt', test=0.5) for name in 'ab')
  (lost / 'summary.json').write_text('{"steps": 10, "total_st')
  (tmp_path / 'broken.json').write_text('{"config": {}, "epochs": []}')
  runs, problems = results.gather([tmp_path])
  assert [run.source for run in runs] == [whole] and len(problems) == 2
  said = f'{lost}/summary.json cannot be read: '
  assert any(problem.startswith(said) for problem in problems)
  assert all('\n' not in problem for problem in problems)


def test_runs_with_other_records_are_not_compared(write, tmp_path):
  data = {
      'class_names': [str(number) for number in range(10)],
      'image_size': [32, 32],
  }
  records = [
      ('a', 'b', '', 'test'),
      ('a', 'b', '', 'test'),
      ('a', 'c', '', 'test'),
      ('a', 'b', 'maps', 'test'),
      ('a', 'b', '', 'test[:50%]'),
      ('a', 'b', '', ''),  # not to be tested
  ]
  for seed, (train, val, maps, test) in enumerate(records):
    how = {'overrides': [*SHORT, f'--config.data.test_split={test}']}
    folder = write(f'{seed}', 'cifar10_rmt', seed=seed, test=0.5, **how)
    splits = {'train': {'order': train}, 'val': {'order': val}}
    known = {'splits': splits, 'label_maps': maps}
    (folder / 'data.json').write_text(json.dumps(data | known))
  settings, left_out = results.group(results.gather([tmp_path])[0])
  seeds = [
      sorted(run.config.seed for run in one.variants['rmt']) for one in settings
  ]
  assert sorted(seeds) == [[0, 1], [2], [3], [4], [5]] and not left_out


def test_seeds_are_one_variant_and_models_one_setting(grouped):
  (setting,), left_out = grouped(
      ('ablation:retention,no_gate', {'seed': 1}),
      ('cifar10_retention', {'seed': 1}),
      ('cifar10_retention', {'seed': 0}),
      ('ablation:bare,gate', {}),
      ('cifar10_swat', {'accuracies': [0.25]}),
      ('cifar10_swat', {}),
      ('cifar10_swat', {'overrides': [*SHORT, '--config.data.storage=disk']}),
  )
  assert setting.title == 'cifar10, compact models'
  assert {
      label: [run.number for run in runs]
      for label, runs in setting.variants.items()
  } == {
      'retention': [3, 2],
      'swat': [6],
      'bare,gate': [4],
      'retention,no_gate': [1],
  }
  # Storage changes no result, so the last run repeats a seed.
  assert left_out == [
      '[5] has the same seed as [6], which is used instead',
      '[7] has the same seed as [6], which is used instead',
  ]


RATIO = '--config.model.mlp_ratios=(3,3,3,3)'
OTHER = '--config.data.name=other'


@pytest.mark.parametrize(
    ('runs', 'titles'),
    [
        # RMT's FFN has the ratio 3, too; it has Retention's size all the same.
        (
            [('rmt', []), ('retention', []), ('retention', [RATIO])],
            {
                'cifar10, compact models': 2,
                'cifar10, compact models, resized': 1,
            },
        ),
        ([('rmt', []), ('rmt', ['--config.batch_size=64'])], None),
        ([('rmt', []), ('rmt', [NORMAL])], None),
        (
            [('rmt', []), ('rmt', [OTHER])],
            {'cifar10, compact models': 1, 'other, compact models': 1},
        ),
    ],
)
def test_what_was_trained_otherwise_is_another_setting(grouped, runs, titles):
  settings, _ = grouped(
      *(
          (f'cifar10_{model}', {'overrides': [*SHORT, *changes]})
          for model, changes in runs
      )
  )
  assert len(settings) == 2
  if titles:
    assert {one.title: len(one.runs) for one in settings} == titles
    # Only the paper's models on its data are compared with the paper.
    paper_s = [one.title for one in settings if one.benchmark]
    assert paper_s == ['cifar10, compact models']


def test_a_segmenter_is_resized_together_with_its_base(grouped):
  """The ratio of the FFN is 3 in both; only the named Retention has another."""
  runs = [(f'camvid:{name}', {'classes': 11}) for name in ('rmt', 'retention')]
  ratio = {
      'classes': 11,
      'seed': 1,
      'overrides': [*SHORT, RATIO[:-9] + '(2,2,2,2)'],
  }
  settings, _ = grouped(*runs, ('camvid:rmt', ratio))
  assert [[*one.variants] for one in settings] == [
      ['rmt', 'retention'],
      ['rmt'],
  ]


def test_differences_from_the_recipe(grouped):
  fields = ('name=tiny', 'train_split=train[:10%]')
  overrides = [NORMAL, *(f'--config.data.{field}' for field in fields)]
  how = {'overrides': overrides, 'classes': 100}
  (setting,), _ = grouped(('mini_imagenet_rmt', how))
  assert setting.benchmark is paper.MINI_IMAGENET
  assert setting.differences == [
      "data.name is 'mini_imagenet' there and 'tiny' here",
      "data.train_split is 'train' there and 'train[:10%]' here",
      "model.linear_start is 'uniform' there and 'normal' here",
  ]


def test_other_data_at_224_pixels_are_not_the_paper_s(grouped):
  (setting,), _ = grouped(('mini_imagenet_rmt', {'classes': 10}))
  assert setting.benchmark is None


def test_the_command(counted, write, capsys, tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))  # The shell leaves --out=~/x as is.
  folder, out = write('a', 'digits_rmt'), tmp_path / 'out'
  assert report.main([str(folder), '--out=~/out']) == 0
  assert capsys.readouterr().out == f'{out}/report.md\n'
  for runs, to, said in (
      (out, tmp_path / 'none', 'there is no run in'),
      (folder, folder / 'config.json', 'File exists'),
  ):
    with pytest.raises(SystemExit) as stopped:
      report.main([str(runs), f'--out={to}'])
    assert stopped.value.code == 2 and not to.is_dir()
    assert said in capsys.readouterr().err.splitlines()[-1]
