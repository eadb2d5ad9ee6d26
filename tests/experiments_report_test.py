"""A report: its parts, its pictures, and what it says is missing."""

import pathlib
import re

import made_up_runs
import numpy as np
from PIL import Image
import pytest

from gswinrmt_jax.commands import main
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import charts, report, results, switches
from gswinrmt_jax.experiments.statistics import Mean

SHORT = ['--config.num_epochs=2']


@pytest.fixture
def counted(monkeypatch):
  """Counting is tested where it is done; here each model costs its number."""

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
      'cifar10, compact models',
      'Table 5',
      'Table 6: validation accuracy (%) by epoch',
      'Tables 7 and 8: test accuracy (points)',
      'All variants',
      'Cost',
      'Retention, one component changed',
      'Plots',
      'What is missing',
      'Runs',
  ]
  assert 'recipe for CIFAR-10: num_epochs is 50 there and 2 here.' in text
  assert '| more than noise: worse |' in text
  assert 'Latency is that of one image: device unknown.' in text
  assert '- cifar10, compact models: no run of SWAT' in text
  assert f'- {runs / "rmt_s1" / "config.json"} cannot be read: ' in text
  # Every figure has its run, and every run its folder.
  cited = {int(number) for number in re.findall(r'\[(\d+)\]', text)}
  listed = re.findall(r'^(\d+)\. `(.*)`:', text, re.MULTILINE)
  assert cited == {int(number) for number, _ in listed} == set(range(1, 9))
  assert dict(listed)['7'] == str(runs / 'rmt_s0')
  pictures = re.findall(r'^!\[.*\]\((.*)\)$', text, re.MULTILINE)
  assert pictures == [
      'curves_cifar10_compact_models.png',
      'macs_cifar10_compact_models.png',
      'latency_cifar10_compact_models.png',
  ]
  written = {file.name for file in (tmp_path / 'out').iterdir()}
  assert written == {'report.md', *pictures}


def test_two_settings_of_a_title_have_pictures_of_their_own(runs, tmp_path):
  made_up_runs.write(
      runs / 'other', 'cifar10_rmt', [0.5], overrides=['--config.dtype=float32']
  )
  text = report.write([runs], tmp_path / 'out').read_text()
  pictures = re.findall(r'^!\[.*\]\((.*)\)$', text, re.MULTILINE)
  assert len(pictures) == len(set(pictures)) == 3


def test_a_setting_that_is_not_the_papers(counted, tmp_path):
  """It has its own curves, and says what its protocol and its test are."""
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
    assert headings[2] == 'Validation accuracy (%) by epoch'
    assert '| `rmt` | 25.00 | 50.00 |' in text
    assert 'CIFAR-10: augment.' in text and 'batch_size is 128 there' in text
    assert ('There is no test split' in text) == (split == 'val')


def test_without_runs_nothing_is_written(tmp_path):
  with pytest.raises(UserError, match='there is no run'):
    report.write([tmp_path], tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


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
  (line,) = (one for one in found if 'nothing to compare with' in one)
  assert '`swat,window_4_no_shift` has nothing to compare with [1]' in line
  assert sum('no run of' in one for one in found) == 3


RMT = (0, 114, 178)  # the colour of RMT


def _point(label, cost, accuracy):
  return charts.Point(label, cost, Mean(1, accuracy, None))


def _pixels(path, color):
  image = np.asarray(Image.open(path).convert('RGB')).astype(int)
  return (np.abs(image - color).max(-1) < 30).sum()


def test_front():
  """Cheaper first; only what is better than all that is cheaper."""
  points = [
      _point('dear', 3.0, 0.8),
      _point('cheap', 1.0, 0.5),
      _point('worse', 2.0, 0.4),
      _point('as good', 4.0, 0.8),
      _point('same cost, better', 1.0, 0.6),
  ]
  assert [one.label for one in charts.front(points)] == [
      'same cost, better',
      'dear',
  ]
  assert charts.front([]) == []


def test_curves(tmp_path):
  path = tmp_path / 'curves.png'

  def drawn(epochs, printed):
    curve = charts.Curve('rmt', epochs, printed)
    charts.draw_curves(path, [curve], 'title')
    return _pixels(path, RMT)

  epochs = {1: Mean(1, 0.2, None), 2: Mean(1, 0.4, None), 3: Mean(2, 0.5, 0.1)}
  empty, ours = drawn({}, {}), drawn(epochs, {})
  both = drawn(epochs, {1: 45.0, 2: 25.0, 3: 30.0})
  assert empty == 0 and ours > 200 and both > ours + 60
  assert [file.name for file in tmp_path.iterdir()] == ['curves.png']


def test_costs_are_drawn_in_the_colour_of_the_base(tmp_path):
  path = tmp_path / 'costs.png'

  def drawn(*switches):
    points = [_point('rmt', 1.0, 0.5)]
    points += [_point(f'rmt,{k}', 1.5, 0.4) for k in switches]
    charts.draw_costs(path, points, 'title', cost='cost', accuracy='accuracy')
    return np.asarray(Image.open(path).convert('RGB')).astype(int)

  one, more = drawn(), drawn('gate')
  assert _pixels(path, RMT) > 30
  # A switch is drawn in the colour of its base, made lighter.
  light = np.array(RMT) * 0.6 + 255 * 0.4
  alone, with_switch = (
      (np.abs(image - light).max(-1) < 12).sum() for image in (one, more)
  )
  assert with_switch > alone + 10


def test_a_base_has_its_own_colour():
  rmt, other, again = charts._colors(['rmt', 'rmt,gate', 'rmt,lce'])
  assert rmt == '#0072b2' and len({rmt, other, again}) == 3


@pytest.fixture
def equal_costs(monkeypatch):
  """Counting is tested where it is done; here a model costs as it is wide."""

  class Cost:
    parameters, macs = 1000, 3 * 2**30

  monkeypatch.setattr(results.cost, 'count', lambda *_: Cost)


@pytest.fixture
def drawn(equal_costs, monkeypatch, tmp_path):
  """Returns a function that draws runs, to what the pictures are made of."""

  def draw(*runs):
    for number, (spec, accuracies, how) in enumerate(runs):
      made_up_runs.write(
          tmp_path / 'runs' / f'{number}',
          spec,
          accuracies,
          overrides=SHORT,
          **how,
      )
    found = {}
    for name in ('draw_curves', 'draw_costs'):
      monkeypatch.setattr(
          charts,
          name,
          lambda path, shown, title, **how: found.setdefault(
              path.stem, (shown, title, how)
          ),
      )
    (setting,), _ = results.group(results.gather([tmp_path / 'runs'])[0])
    names = charts.draw(setting, tmp_path, 'x')
    assert names == [f'{stem}.png' for stem in found]
    return found

  return draw


def test_what_is_drawn(drawn):
  runs = []
  for seed in range(2):
    how = {'seed': seed, 'test': 0.5}
    runs += [
        ('cifar10_rmt', [0.25, 0.5], how),
        ('ablation:retention,no_gate', [0.25, 0.5 + seed / 10], how),
    ]
  found = drawn(*runs)
  assert list(found) == ['curves_x', 'macs_x']
  curves, title, _ = found['curves_x']
  assert title == 'cifar10, compact models'
  assert [one.label for one in curves] == ['rmt', 'retention,no_gate']
  assert curves[0].printed[10] == 70.58
  assert curves[1].epochs[2].mean == pytest.approx(0.55)
  points, _, how = found['macs_x']
  assert how == {'cost': 'MACs / 2^30', 'accuracy': 'test accuracy (%)'}
  assert [one.cost for one in points] == [3, 3]
  assert points[0].accuracy == Mean(2, 0.5, 0.0)


def test_accuracies_of_runs_that_go_on_are_of_an_epoch_that_all_have(drawn):
  unfinished = {'summed_up': False}
  found = drawn(
      ('cifar10_rmt', [0.25, 0.5], {'test': 0.5}),
      ('cifar10_retention', [0.375], unfinished),
      ('cifar10_swat', [], unfinished),
      ('cifar10_swat', [0.25, 0.5], {'seed': 1, **unfinished}),
  )
  points, _, how = found['macs_x']
  assert how['accuracy'] == 'validation accuracy (%), epoch 1'
  assert [one.accuracy.mean for one in points] == [0.25, 0.375, 0.25]


def test_of_one_variant_there_is_nothing_to_weigh_up(drawn):
  found = drawn(('cifar10_rmt', [0.25, 0.5], {'test': 0.5}))
  assert list(found) == ['curves_x']


def test_of_many_variants_the_bases_have_curves(drawn):
  names = [f'swat,{name}' for name in list(switches.SWITCHES['swat'])[:13]]
  found = drawn(
      *(
          (f'ablation:{name}', [0.5], {'summed_up': False})
          for name in [*names, 'rmt,base']
      )
  )
  assert [one.label for one in found['curves_x'][0]] == ['rmt', 'swat']


def test_folders_reach_the_report(monkeypatch, capsys):
  calls = []

  def write(paths, out):
    calls.append((paths, out))
    return out / 'report.md'

  monkeypatch.setattr(report, 'write', write)
  assert main.main(['report', 'a', 'b', '--out=c']) == 0
  assert calls == [([pathlib.Path('a'), pathlib.Path('b')], pathlib.Path('c'))]
  assert capsys.readouterr().out == 'c/report.md\n'


def test_mistakes_are_one_line(capsys, tmp_path):
  assert main.main(['report', str(tmp_path)]) == 2
  assert capsys.readouterr().err == (
      f'gswinrmt: there is no run in {tmp_path}\n'
  )
  assert main.main(['report']) == 2
