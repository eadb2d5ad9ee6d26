"""A report of runs that are made up, from tables to pictures."""

import re

import made_up_runs
import pytest

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import variants, write_report

SHORT = ['--config.num_epochs=2']


@pytest.fixture(autouse=True)
def cost(monkeypatch):
  """Counting is tested where it is done; here each model costs its number."""

  class Cost:

    def __init__(self, parameters):
      self.parameters, self.macs = parameters, 1000 * parameters

  counted = iter(range(1000, 2000))
  monkeypatch.setattr(variants.cost, 'count', lambda *_: Cost(next(counted)))


@pytest.fixture
def runs(tmp_path):
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


def test_report(runs, tmp_path):
  for name in ('rmt_s0', 'no_gate_s0'):
    (runs / name / 'latency.json').write_text('{"milliseconds": 2.5}')
  (runs / 'rmt_s1' / 'config.json').write_text('{')
  path = write_report.write([runs], tmp_path / 'out')
  text = path.read_text()
  headings = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
  assert headings == [
      'Report',
      'cifar10, compact models',
      'Table 5',
      'Table 6: validation accuracy (%) by epoch',
      'Tables 7 and 8: test accuracy (points)',
      'Validation and test',
      'All variants',
      'Cost',
      'Retention, one component changed',
      'Pictures',
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
      'curves_cifar10_compact_models_retention.png',
      'macs_cifar10_compact_models.png',
      'latency_cifar10_compact_models.png',
  ]
  written = {file.name for file in (tmp_path / 'out').iterdir()}
  assert written == {'report.md', *pictures}


def test_two_settings_of_a_title_have_pictures_of_their_own(runs, tmp_path):
  made_up_runs.write(
      runs / 'other', 'cifar10_rmt', [0.5], overrides=['--config.dtype=float32']
  )
  text = write_report.write([runs], tmp_path / 'out').read_text()
  pictures = re.findall(r'^!\[.*\]\((.*)\)$', text, re.MULTILINE)
  assert len(pictures) == len(set(pictures)) == 4


def test_a_setting_that_is_not_the_papers(tmp_path):
  """It has its own curves, and says what its protocol and its test are."""
  for name, split in (('a', 'test'), ('b', 'val')):
    made_up_runs.write(
        tmp_path / 'runs' / name,
        'digits_rmt',
        [0.25, 0.5],
        overrides=[*SHORT, f'--config.data.test_split={split}'],
        seed=len(split),
    )
    path = write_report.write([tmp_path / 'runs' / name], tmp_path / name)
    text = path.read_text()
    headings = re.findall(r'^#+ (.*)$', text, re.MULTILINE)
    assert headings[2] == 'Validation accuracy (%) by epoch'
    assert '| `rmt` | 25.00 | 50.00 |' in text
    assert 'CIFAR-10: augment.' in text and 'batch_size is 128 there' in text
    assert ('There is no test split' in text) == (split == 'val')


def test_without_runs_nothing_is_written(tmp_path):
  with pytest.raises(UserError, match='there is no run'):
    write_report.write([tmp_path], tmp_path / 'out')
  assert not (tmp_path / 'out').exists()
