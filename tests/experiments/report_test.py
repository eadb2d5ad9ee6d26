"""Tests reports on made-up runs: sections, plots, and what is missing."""

import re

import ablations
import made_up_runs
import numpy as np
import pytest
import report
import runs as results

SHORT = ['--config.num_epochs=2']


@pytest.fixture
def counted(monkeypatch):
  """Replaces counting, which is tested elsewhere, by consecutive numbers."""

  class Cost:

    def __init__(self, parameters):
      self.parameters, self.macs = parameters, 1000 * parameters

  numbers = iter(range(1000, 2000))
  monkeypatch.setattr(results.cost, 'count', lambda *_: Cost(next(numbers)))


@pytest.fixture
def runs(counted, tmp_path):
  folder = tmp_path / 'runs'
  for seed in range(3):
    for model, test in (('rmt', 0.8), ('retention', 0.85)):
      made_up_runs.write(
          folder / f'{model}_s{seed}',
          f'cifar10_{model}',
          [0.25, 0.5 + seed / 10],
          seed=seed,
          test=test + seed / 100,
          overrides=SHORT,
      )
    made_up_runs.write(
        folder / f'no_gate_s{seed}',
        'ablation:retention,no_gate',
        [0.25, 0.5],
        seed=seed,
        test=0.75 + seed / 100,
        overrides=SHORT,
    )
  return folder


def test_parts(runs, tmp_path):
  for name in ('rmt_s0', 'no_gate_s0'):
    (runs / name / 'latency.json').write_text('{"milliseconds": 2.5}')
  (runs / 'rmt_s1' / 'config.json').write_text('{')
  path = report.write([runs], tmp_path / 'out')
  text = path.read_text()
  headings = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
  assert headings == [
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
  assert '| more than noise: worse |' in text
  assert 'Latency is that of one image: device unknown.' in text
  assert '- cifar10, compact models: no run of SWAT' in text
  assert f'- {runs / "rmt_s1" / "config.json"} cannot be read: ' in text
  # Every result cites its run, and every run is listed with its folder.
  cited = {int(number) for number in re.findall(r'\[(\d+)\]', text)}
  listed = re.findall(r'^\| \[(\d+)\] \| `(.*?)`', text, re.MULTILINE)
  assert cited == {int(number) for number, _ in listed} == set(range(1, 9))
  assert dict(listed)['7'] == str(runs / 'rmt_s0')
  pictures = re.findall(r'^!\[.*\]\((.*)\)$', text, re.MULTILINE)
  assert pictures == ['curves_cifar10_compact_models.png']
  written = {file.name for file in (tmp_path / 'out').iterdir()}
  assert written == {'report.md', *pictures}


def test_two_settings_of_a_title_have_pictures_of_their_own(runs, tmp_path):
  made_up_runs.write(
      runs / 'other', 'cifar10_rmt', [0.5], overrides=['--config.dtype=float32']
  )
  text = report.write([runs], tmp_path / 'out').read_text()
  pictures = re.findall(r'^!\[.*\]\((.*)\)$', text, re.MULTILINE)
  assert len(pictures) == len(set(pictures)) == 2


def test_a_setting_that_is_not_the_papers(counted, tmp_path):
  """It has its own curves, and states its protocol and test split."""
  for name, split in (('a', 'test'), ('b', 'val')):
    made_up_runs.write(
        tmp_path / 'runs' / name,
        'digits_rmt',
        [0.25, 0.5],
        overrides=[*SHORT, f'--config.data.test_split={split}'],
        seed=len(split),
    )
    path = report.write([tmp_path / 'runs' / name], tmp_path / name)
    text = path.read_text()
    headings = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
    assert headings[3] == 'Validation accuracy (%) by epoch'
    assert '| `rmt` | 25.00 | 50.00 |' in text
    assert 'CIFAR-10: augment.' in text and 'batch_size is 128 there' in text
    assert ('There is no test split' in text) == (split == 'val')


@pytest.fixture
def lines(tmp_path):
  def read(*runs):
    for number, (spec, how) in enumerate(runs):
      made_up_runs.write(tmp_path / f'{number}', spec, **how)
    settings, _ = results.group(results.gather([tmp_path])[0])
    return [line for one in settings for line in report.missing(one)]

  return read


def test_runs_that_are_not_there_or_not_done(counted, lines):
  whole = [0.5] * 50
  found = lines(
      ('cifar10_rmt', {'accuracies': whole, 'test': 0.5}),
      ('cifar10_rmt', {'accuracies': whole, 'summed_up': False, 'seed': 1}),
      ('cifar10_retention', {'accuracies': [0.5]}),
  )
  assert found == [
      'no run of SWAT',
      '`rmt`, seed 1: epoch 50 of 50, not tested [2]',
      '`retention`, seed 0: epoch 1 of 50 [3]',
  ]


def test_switches_need_what_they_are_compared_with(counted, lines):
  overrides = ['--config.num_epochs=1', '--config.dtype=float32']
  how = {'accuracies': [0.5], 'test': 0.5, 'overrides': overrides}
  found = lines(('ablation:swat,window_4_no_shift', how))
  (line,) = (one for one in found if 'no run to compare with' in one)
  assert '`swat,window_4_no_shift` [1] has no run to compare with' in line
  assert sum('no run of' in one for one in found) == 3


@pytest.fixture
def equal_costs(monkeypatch):
  """Replaces counting, which is tested elsewhere, by one cost for all."""

  class Cost:
    parameters, macs = 1000, 3 * 2**30

  monkeypatch.setattr(results.cost, 'count', lambda *_: Cost)


@pytest.fixture
def setting(equal_costs, tmp_path):
  """Returns a function that writes runs and returns their setting."""

  def make(*runs):
    for number, (spec, accuracies, how) in enumerate(runs):
      made_up_runs.write(
          tmp_path / f'{number}', spec, accuracies, overrides=SHORT, **how
      )
    (found,), _ = results.group(results.gather([tmp_path])[0])
    return found

  return make


def _lines(figure):
  """Returns {label: (points, colour)} of the lines in the legend."""
  (axes,) = figure.axes
  lines = {}
  for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
    line = handle if hasattr(handle, 'get_xydata') else handle.lines[0]
    lines[label] = (np.asarray(line.get_xydata(), float), line.get_color())
  return lines


@pytest.fixture
def two_seeds(setting):
  runs = []
  for seed in range(2):
    how = {'seed': seed, 'test': 0.5}
    runs += [
        ('cifar10_rmt', [0.25, 0.5], how),
        ('ablation:retention,no_gate', [0.25, 0.5 + seed / 10], how),
    ]
  return setting(*runs)


def test_curves_are_drawn_with_the_deviation_and_the_paper_s_points(two_seeds):
  figure = report.draw_curves(two_seeds)
  (axes,) = figure.axes
  assert axes.get_title(loc='left') == 'cifar10, compact models'
  lines = _lines(figure)
  assert list(lines) == ['rmt, paper', 'rmt', 'retention,no_gate']
  (points, color), (printed, papers) = lines['rmt'], lines['rmt, paper']
  np.testing.assert_allclose(points, [[1, 25], [2, 50]])
  np.testing.assert_allclose(printed[0], [10, 70.58])
  assert color == papers == '#0072b2'
  points, other = lines['retention,no_gate']
  np.testing.assert_allclose(points, [[1, 25], [2, 55]])
  assert other != color
  bars = axes.containers[1].lines[2][0].get_segments()
  half = 10 / 2**0.5  # standard deviation of 50 and 60
  np.testing.assert_allclose(bars[1][:, 1], [55 - half, 55 + half])


def test_of_many_variants_the_bases_have_curves(setting):
  names = [f'swat,{name}' for name in list(ablations.SWITCHES['swat'])[:13]]
  runs = setting(
      *(
          (f'ablation:{name}', [0.5], {'summed_up': False})
          for name in [*names, 'rmt,base']
      )
  )
  lines = _lines(report.draw_curves(runs))
  assert [name for name in lines if 'paper' not in name] == ['rmt', 'swat']


def test_runs_counted_in_steps(counted, tmp_path):
  made_up_runs.write(
      tmp_path / 'rmt',
      'camvid:rmt',
      [0.125, 0.5],
      overrides=['--config.num_epochs=0', '--config.num_steps=2000'],
      classes=11,
  )
  text = report.write([tmp_path / 'rmt'], tmp_path / 'out').read_text()
  assert '2,000 steps of camvid at crops' in text
  assert '`rmt`, seed 0: step 20 of 2,000 [1]\n' in text
  assert '| step 20 of 2,000 | 50.00 |' in text


def test_segmenters(counted, tmp_path):
  """Their scores are mean IoU, and the test IoU of each class has a table."""
  folder = tmp_path / 'runs'
  for seed, test in enumerate((0.25, 0.375)):
    made_up_runs.write(
        folder / f'rmt_s{seed}',
        'camvid:rmt',
        [0.125, 0.5],
        seed=seed,
        test=test,
        overrides=SHORT,
        classes=11,
    )
  text = report.write([folder], tmp_path / 'out').read_text()
  assert '2 epochs of camvid at crops of 224x160, batch 8, float32' in text
  assert 'Scores are the mean IoU over the classes.' in text
  assert '### Validation mean IoU (%) by epoch\n\n| | 1 | 2 |' in text
  pixels = '| 56.25 \N{PLUS-MINUS SIGN} 8.84 |'  # of 0.5 and 0.625
  (row,) = re.findall(r'\| `rmt` \| 2, 2 \|.*', text)
  assert 'test pixel accuracy (%)' in text and pixels in row
  heading = (
      '### Test IoU (%) by class, best epoch\n\n| | `rmt` |\n| --- | --- |\n'
  )
  table = text.partition(heading)[2]
  assert table.startswith('| class 0 | 31.25 \N{PLUS-MINUS SIGN} 8.84 |\n| cla')
  assert '\n| class 10 | \N{EN DASH} |\n' in table
  assert (
      tmp_path / 'out' / 'curves_camvid_compact_models_with_Semantic_FPN'
      '_resized.png'
  ).exists()


def test_the_command_writes_the_report(counted, capsys, tmp_path):
  made_up_runs.write(tmp_path / 'a', 'digits_rmt', [0.25], overrides=SHORT)
  out = tmp_path / 'out'
  assert report.main([str(tmp_path / 'a'), f'--out={out}']) == 0
  assert capsys.readouterr().out == f'{out}/report.md\n'
  with pytest.raises(SystemExit) as stopped:
    report.main([str(out), f'--out={tmp_path / "none"}'])
  assert stopped.value.code == 2 and not (tmp_path / 'none').exists()
  assert 'there is no run in' in capsys.readouterr().err.splitlines()[-1]
