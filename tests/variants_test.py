"""Runs are put together by what they share."""

import pathlib

import made_up_runs
import pytest

from gswinrmt_jax.experiments import gather, paper, variants

SHORT = ['--config.num_epochs=2']


@pytest.fixture
def grouped(tmp_path):
  def make(*runs):
    for number, (spec, how) in enumerate(runs):
      how = {'accuracies': [0.25, 0.5], 'overrides': SHORT, **how}
      made_up_runs.write(tmp_path / f'{number}', spec, **how)
    found, _ = gather.gather([tmp_path])
    return variants.group(found)

  return make


def test_seeds_are_one_variant_and_models_one_setting(grouped):
  settings, passed_over = grouped(
      ('ablation:retention,no_gate', {'seed': 1}),
      ('cifar10_retention', {'seed': 1, 'test': 0.5}),
      ('cifar10_retention', {'seed': 0, 'test': 0.25}),
      ('ablation:bare,gate', {}),
      ('cifar10_swat', {}),
  )
  (setting,) = settings
  assert not passed_over and setting.title == 'cifar10, compact models'
  assert [(one.label, one.numbers) for one in setting.variants] == [
      ('retention', [3, 2]),
      ('swat', [5]),
      ('bare,gate', [4]),
      ('retention,no_gate', [1]),
  ]
  retention = setting.variants[0]
  figures = retention.by_seed(lambda run: run.tested('accuracy'))
  assert figures == {0: 0.25, 1: 0.5}
  assert retention.mean(lambda run: run.tested('accuracy')).mean == 0.375
  assert setting.find('swat').mean(lambda run: run.tested('accuracy')) is None


def test_what_was_trained_otherwise_is_another_setting(grouped):
  settings, _ = grouped(
      ('cifar10_rmt', {}),
      ('cifar10_rmt', {'overrides': [*SHORT, '--config.batch_size=64']}),
      ('cifar10_rmt', {'overrides': [*SHORT, '--config.data.storage=disk']}),
      ('digits_rmt', {}),
  )
  sizes = sorted(
      (one.title, sum(len(variant.runs) for variant in one.variants))
      for one in settings
  )
  # How images are stored changes nothing: the same seed, which counts once.
  assert sizes == [
      ('cifar10, compact models', 1),
      ('cifar10, compact models', 1),
      ('digits, compact models, resized', 1),
  ]


def test_of_two_runs_of_a_seed_the_one_that_got_further_counts(grouped):
  settings, passed_over = grouped(
      ('cifar10_rmt', {'accuracies': [0.25]}),
      ('cifar10_rmt', {'accuracies': [0.25, 0.5]}),
      ('cifar10_rmt', {'accuracies': [0.25, 0.5], 'summed_up': False}),
  )
  assert settings[0].variants[0].numbers == [2]
  assert passed_over == [
      '[1] is of the same seed as [2], which counts',
      '[3] is of the same seed as [2], which counts',
  ]


def test_the_paper_stands_beside_its_own_models_alone(grouped):
  data = ['--config.data.name=tiny']
  settings, _ = grouped(
      ('cifar10_rmt', {}),
      ('cifar10_swat', {'overrides': [*SHORT, '--config.data.name=other']}),
      ('mini_imagenet_rmt', {'overrides': data, 'classes': 100}),
      ('mini_imagenet_rmt', {'overrides': ['--config.data.image_size=64']}),
      ('digits_rmt', {}),
  )
  found = {one.benchmark and one.benchmark.title for one in settings}
  assert found == {'CIFAR-10', 'Mini-ImageNet', None}
  (mini,) = (one for one in settings if one.benchmark is paper.MINI_IMAGENET)
  assert mini.differences == [
      "data.name is 'mini_imagenet' there and 'tiny' here"
  ]
  (cifar,) = (one for one in settings if one.benchmark is paper.CIFAR10)
  assert cifar.differences == ['num_epochs is 50 there and 2 here']


def test_cost_is_that_of_the_model_on_its_images(grouped):
  settings, _ = grouped(('digits_rmt', {}))
  cost = settings[0].variants[0].cost
  assert cost.parameters == 168_994 and cost.macs > 1e6
  unknown = gather.Run(pathlib.Path(), settings[0].config, [])
  assert variants.Variant('rmt', [unknown], [1]).cost is None
