"""Tests finding, reading and grouping runs: whole, unfinished or damaged."""

import dataclasses
import json
import pathlib

import collect
import made_up_runs
import paper
import pytest
import runs as results

from gswinrmt_jax.errors import UserError

SHORT = ['--config.num_epochs=2']


@pytest.fixture
def folder(tmp_path):
  return made_up_runs.write(
      tmp_path / 'a' / 'rmt_s0',
      'cifar10_rmt',
      [0.25, 0.5],
      test=0.625,
      overrides=SHORT,
  )


def test_reads_a_run_folder(folder, tmp_path):
  (folder / 'latency.json').write_text('{"milliseconds": 1.5}')
  (folder / 'environment.json').write_text('[{"device": "A"}, {"device": "B"}]')
  (run,), problems = results.gather([tmp_path])
  assert not problems and run.source == folder
  assert run.curve == {1: 0.25, 2: 0.5} and run.epoch == 2 and run.finished
  assert run.tested('accuracy') == 0.625
  assert run.seconds_per_epoch == 20.0
  assert run.class_names == tuple(f'class {k}' for k in range(10))
  assert run.image_size == (32, 32)
  assert run.latency == {'milliseconds': 1.5} and run.device == 'B'
  assert run.config.model.window_size == 0


def _with_ratio(run, ratio):
  config = run.config.copy_and_resolve_references()
  with config.unlocked():
    config.model.mlp_ratios, config.seed = (ratio,) * 4, 1
  return dataclasses.replace(run, config=config)


def test_a_run_of_a_segmenter_has_its_mean_iou(tmp_path):
  path = made_up_runs.write(
      tmp_path / 'a', 'camvid:rmt', [0.25] * 60, test=0.5, classes=11
  )
  run = results.read(path)
  assert run.curve[60] == 0.25 and run.test_score == 0.5
  assert run.gap == -0.25 and run.tested('pixel_accuracy') == 0.75
  (setting,), _ = results.group([run])
  assert setting.title == ('camvid, compact models with Semantic FPN, resized')
  assert setting.score == 'mean IoU' and not setting.benchmark
  # The ratio of the FFN is 3 in both; only the named Retention has another.
  path = made_up_runs.write(
      tmp_path / 'b', 'camvid:retention', [0.25] * 60, classes=11
  )
  (both,), _ = results.group([run, results.read(path)])
  assert [*both.variants] == ['rmt', 'retention']
  assert len(results.group([run, _with_ratio(run, 2.0)])[0]) == 2
  # Counted with its head, as tests/recipes/configs_test.py lists it.
  assert setting.runs[0].cost.parameters == 1_165_307


def test_a_run_that_is_not_finished_was_not_tested(tmp_path):
  """Even if its summary has a test accuracy, as early versions wrote."""
  made_up_runs.write(tmp_path / 'a', 'cifar10_rmt', [0.25], test=0.5)
  (run,), _ = results.gather([tmp_path])
  assert not run.finished and run.tested('accuracy') is None


def test_a_summary_of_an_earlier_step_is_none(folder):
  with (folder / 'metrics.jsonl').open('a') as file:
    entry = {'kind': 'epoch', 'step': 30, 'epoch': 3, 'val_accuracy': 0.75}
    entry |= {'steps': 10, 'seconds': 7.0}
    file.write(json.dumps(entry) + '\n{"kind": "ep')
  (run,), _ = results.gather([folder])
  assert run.summary is None and run.epoch == 3
  assert run.seconds_per_epoch == 20.0  # the median of 20, 20, 7


def test_the_time_of_an_epoch_if_not_every_epoch_is_validated(tmp_path):
  made_up_runs.write(tmp_path / 'a', 'cifar10_rmt', [0.25, 0.5])
  path = tmp_path / 'a' / 'metrics.jsonl'
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  lines = [line for line in lines if line['kind'] == 'epoch']
  for entry in lines:  # a validation after every fourth epoch
    entry['epoch'] *= 4
  path.write_text(''.join(json.dumps(entry) + '\n' for entry in lines))
  (tmp_path / 'a' / 'summary.json').unlink(missing_ok=True)
  (run,), _ = results.gather([tmp_path])
  assert run.seconds_per_epoch == 5.0  # 20 seconds for 4 epochs


def test_a_summary_without_the_time_of_an_epoch(folder):
  """The log was missing when the summary was written, and is back."""
  path = folder / 'summary.json'
  summary = json.loads(path.read_text())
  del summary['seconds_per_epoch']
  path.write_text(json.dumps(summary))
  (run,), _ = results.gather([folder])
  assert run.finished and run.seconds_per_epoch == 20.0


def test_weights_and_other_files_are_no_runs(folder, tmp_path):
  (tmp_path / 'weights').mkdir()
  (tmp_path / 'weights' / 'config.json').write_text('{}')
  (tmp_path / 'other.json').write_text('[1]')
  (folder / 'export').mkdir()
  for name in ('config.json', 'metrics.jsonl'):
    (folder / 'export' / name).write_text('{}')
  runs, problems = results.gather(
      [tmp_path, folder]
  )  # once, though named twice
  assert len(runs) == 1 and not problems


def test_what_cannot_be_read_is_said(folder, tmp_path):
  other = made_up_runs.write(tmp_path / 'b', 'cifar10_rmt', [0.5])
  (other / 'config.json').write_text('{')
  (tmp_path / 'broken.json').write_text('{"config": {}, "epochs": []}')
  lost = made_up_runs.write(tmp_path / 'c', 'cifar10_rmt', [0.5])
  (lost / 'summary.json').write_text('{"steps": 10, "total_steps": 10}')
  runs, problems = results.gather([tmp_path])
  assert len(runs) == 1 and len(problems) == 3
  assert f"{lost} is not a complete summary: 'last' is not in it" in problems
  assert any(str(other) in problem for problem in problems)
  assert all('\n' not in problem for problem in problems)


@pytest.mark.parametrize(
    'by_class, text',
    [
        ([0.5, 0.25], '2 scores by class, 11 classes'),
        ([0.5] * 10 + ['0.25'], "'0.25' is not a score"),
    ],
)
def test_damaged_scores_by_class_are_one_line(tmp_path, by_class, text):
  path = made_up_runs.write(
      tmp_path / 'a', 'camvid:rmt', [0.25] * 60, test=0.5, classes=11
  )
  summary = json.loads((path / 'summary.json').read_text())
  summary['best']['test_class_iou'] = by_class
  (path / 'summary.json').write_text(json.dumps(summary))
  with pytest.raises(UserError, match=f'^{path}: {text}$'):
    results.read(path)


def test_an_epoch_without_its_score_is_one_line(folder):
  path = folder / 'metrics.jsonl'
  path.write_text(path.read_text().replace('val_accuracy', 'val_acc'))
  with pytest.raises(UserError, match=f'^{folder}: None is not a score$'):
    results.read(folder)


def test_a_folder_without_runs_is_refused(tmp_path):
  with pytest.raises(UserError, match='there is no run in'):
    results.gather([tmp_path])
  with pytest.raises(UserError, match='nowhere: no such file or folder'):
    results.gather([tmp_path / 'nowhere'])


def test_collected_figures_are_those_of_the_run(folder, tmp_path):
  start = {
      'command': ['/place/train.py', '--config=x', '--config.data.dir=/place'],
      'device': 'cpu',
  }
  config = {'data': {'dir': '/place', 'name': 'cifar10'}}
  own = json.loads((folder / 'config.json').read_text())
  own['data']['dir'] = '/place'
  (folder / 'config.json').write_text(json.dumps(own))
  environment = [start, {**start, 'config': config}]
  (folder / 'environment.json').write_text(json.dumps(environment))
  path = tmp_path / 'collected.json'
  path.write_text(json.dumps(collect.collect(folder)))
  assert '/place' not in path.read_text()
  (run,), _ = results.gather([folder])
  (again,), _ = results.gather([path])
  assert again.source == path and again.config.model == run.config.model
  for name in ('epochs', 'summary', 'class_names', 'image_size', 'latency'):
    assert getattr(again, name) == getattr(run, name), name


@pytest.fixture
def grouped(tmp_path):
  def make(*runs):
    for number, (spec, how) in enumerate(runs):
      how = {'accuracies': [0.25, 0.5], 'overrides': SHORT, **how}
      made_up_runs.write(tmp_path / f'{number}', spec, **how)
    found, _ = results.gather([tmp_path])
    return results.group(found)

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
  numbers = {
      label: [run.number for run in runs]
      for label, runs in setting.variants.items()
  }
  assert [*numbers.items()] == [
      ('retention', [3, 2]),
      ('swat', [5]),
      ('bare,gate', [4]),
      ('retention,no_gate', [1]),
  ]


def test_a_resized_model_is_not_compared_with_the_papers(grouped):
  """Even if its sizes are those of another named model: RMT's FFN has 3."""
  ratio = [*SHORT, '--config.model.mlp_ratios=(3,3,3,3)']
  settings, _ = grouped(
      ('cifar10_rmt', {}),
      ('cifar10_retention', {'accuracies': [0.25]}),
      ('cifar10_retention', {'overrides': ratio}),
  )
  assert [one.title for one in settings] == [
      'cifar10, compact models',
      'cifar10, compact models, resized',
  ]
  assert [len(one.variants) for one in settings] == [2, 1]
  assert settings[0].benchmark and not settings[1].benchmark


def test_other_classes_are_another_setting(tmp_path):
  runs = []
  for seed in (0, 1):
    path = made_up_runs.write(tmp_path / f'{seed}', 'cifar10_rmt', [0.5])
    runs.append(results.read(path))
  names = runs[1].class_names[::-1]
  other = dataclasses.replace(runs[1], class_names=names)
  assert len(results.group(runs)[0]) == 1
  assert len(results.group([runs[0], other])[0]) == 2


NORMAL = '--config.model.linear_start=normal'


def test_another_initialisation_is_named_as_a_difference(grouped):
  (setting,), _ = grouped(('cifar10_rmt', {'overrides': [*SHORT, NORMAL]}))
  assert 'rmt' in setting.variants  # It is no other model.
  (found,) = [one for one in setting.differences if 'linear_start' in one]
  assert found == "model.linear_start is 'uniform' there and 'normal' here"


def test_what_was_trained_otherwise_is_another_setting(grouped):
  settings, _ = grouped(
      ('cifar10_rmt', {}),
      ('cifar10_rmt', {'overrides': [*SHORT, '--config.batch_size=64']}),
      ('cifar10_rmt', {'overrides': [*SHORT, '--config.data.storage=disk']}),
      ('cifar10_rmt', {'overrides': [*SHORT, NORMAL]}),
      ('digits_rmt', {}),
  )
  sizes = sorted((one.title, len(one.runs)) for one in settings)
  # Storage changes no result, so those two runs are one seed, counted once.
  assert sizes == [
      ('cifar10, compact models', 1),
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
  assert [run.number for run in settings[0].runs] == [2]
  assert passed_over == [
      '[1] has the same seed as [2], which is used instead',
      '[3] has the same seed as [2], which is used instead',
  ]


def test_the_paper_is_compared_with_its_own_models_only(grouped):
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
  cost = settings[0].runs[0].cost
  assert cost.parameters == 168_994 and cost.macs > 1e6
  unknown = results.Run(pathlib.Path(), settings[0].config, [])
  assert unknown.cost is None
