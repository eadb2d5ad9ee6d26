"""What is drawn of a setting, of runs that are made up."""

import made_up_runs
import pytest

from gswinrmt_jax.experiments import (
    gather,
    setting_pictures,
    switches,
    variants,
)
from gswinrmt_jax.experiments.statistics import Mean

SHORT = ['--config.num_epochs=2']


@pytest.fixture(autouse=True)
def cost(monkeypatch):
  """Counting is tested where it is done; here a model costs as it is wide."""

  class Cost:
    parameters, macs = 1000, 3 * 2**20

  monkeypatch.setattr(variants.cost, 'count', lambda *_: Cost)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
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
    for name in ('write_curves', 'write_costs'):
      monkeypatch.setattr(
          setting_pictures.charts,
          name,
          lambda path, shown, title, **how: found.setdefault(
              path.stem, (shown, title, how)
          ),
      )
    (setting,), _ = variants.group(gather.gather([tmp_path / 'runs'])[0])
    names = setting_pictures.write(setting, tmp_path, 'x')
    assert names == [f'{stem}.png' for stem in found]
    return found

  return draw


def test_curves_over_a_base_are_paired_by_seed(drawn):
  """Validation of no_gate less that of Retention: 0, and 0 and -0.1."""
  runs = []
  for seed in range(2):
    how = {'seed': seed, 'test': 0.5}
    runs += [
        ('cifar10_rmt', [0.25, 0.5], how),
        ('cifar10_retention', [0.25, 0.5 + seed / 10], how),
        ('ablation:retention,no_gate', [0.25, 0.5], how),
    ]
  found = drawn(*runs)
  assert list(found) == ['curves_x', 'curves_x_retention', 'macs_x']
  (curve,), title, how = found['curves_x_retention']
  assert how == {'over': 'retention'}
  assert title == ('cifar10, compact models (2 seeds, with standard deviation)')
  assert curve.label == 'retention,no_gate' and list(curve.epochs) == [1, 2]
  assert curve.epochs[1] == Mean(2, 0.0, 0.0)
  assert curve.epochs[2].mean == pytest.approx(-0.05)
  assert curve.epochs[2].std == pytest.approx(0.1 / 2**0.5)
  # The whole models have curves of their own, all variants in one picture.
  curves, _, _ = found['curves_x']
  assert [one.label for one in curves] == [
      'rmt',
      'retention',
      'retention,no_gate',
  ]
  assert curves[0].printed[10] == 70.58
  points, _, how = found['macs_x']
  assert how == {'cost': 'MACs / 2^20', 'accuracy': 'test accuracy (%)'}
  assert [one.cost for one in points] == [3, 3, 3]
  assert points[0].accuracy == Mean(2, 0.5, 0.0)


def test_accuracies_of_runs_that_go_on_are_of_an_epoch_that_all_have(drawn):
  unfinished = {'summed_up': False}
  found = drawn(
      ('cifar10_rmt', [0.25, 0.5], {'test': 0.5}),
      ('cifar10_retention', [0.375], unfinished),
      ('cifar10_swat', [], unfinished),
      ('cifar10_swat', [0.25, 0.5], {'seed': 1, **unfinished}),
  )
  points, title, how = found['macs_x']
  assert how['accuracy'] == 'validation accuracy (%), epoch 1'
  assert [one.accuracy.mean for one in points] == [0.25, 0.375, 0.25]
  assert '(1 to 2 seeds, with standard deviation)' in title


def test_of_one_variant_there_is_nothing_to_weigh_up(drawn):
  found = drawn(('cifar10_rmt', [0.25, 0.5], {'test': 0.5}))
  assert list(found) == ['curves_x']
  assert found['curves_x'][1] == 'cifar10, compact models (one seed)'


def test_many_variants_have_a_picture_for_each_base(drawn):
  """The whole models in one, and each base with its switches."""
  names = list(switches.SWITCHES['swat'])[:13]
  found = drawn(
      *(
          (f'ablation:{name}', [0.5], {'summed_up': False})
          for name in [*(f'swat,{name}' for name in names), 'rmt,base']
      )
  )
  assert [one.label for one in found['curves_x'][0]] == ['rmt', 'swat']
  assert len(found['curves_x_swat'][0]) == 12 and 'curves_x_rmt' not in found
