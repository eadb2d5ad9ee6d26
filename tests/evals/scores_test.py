"""Tests metrics by hand, passes over a data set, and evaluations of runs."""

import dataclasses
import functools
import io
import json
import pathlib
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tiny_parts

from gswinrmt_jax import recipes
from gswinrmt_jax.data import batches as batches_lib
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import (
    classification,
    evaluate_run,
    evaluator,
    segmentation,
)
from gswinrmt_jax.runs import metrics_log

pytestmark = pytest.mark.usefixtures('compiled_once', 'tiny_installed')

# Chosen probabilities of three classes; logits are their logarithms.
PROBABILITIES = np.array(
    [
        [0.50, 0.30, 0.20],  # true 0: right, confidence 0.50
        [0.10, 0.72, 0.18],  # true 1: right, confidence 0.72
        [0.25, 0.05, 0.70],  # true 0: wrong, confidence 0.70
        [0.90, 0.06, 0.04],  # padding
    ]
)
LABEL = np.array([0, 1, 0, 2], np.int32)
MASK = np.array([1, 1, 1, 0], np.float32)


_batch_sums = jax.jit(classification.batch_sums)


def _report(logits, label, mask):
  sums = _batch_sums(
      jnp.asarray(logits, jnp.float32), jnp.asarray(label), jnp.asarray(mask)
  )
  return classification.scores(
      jax.tree.map(lambda leaf: np.asarray(leaf, float), sums)
  )


def test_figures_by_hand():
  report = _report(np.log(PROBABILITIES), LABEL, MASK)
  logs = np.log(PROBABILITIES[:3])
  true = np.array([logs[0, 0], logs[1, 1], logs[2, 0]])
  assert report['count'] == 3
  assert report['accuracy'] == pytest.approx(2 / 3)
  assert 'top5_accuracy' not in report  # there are only three classes
  assert report['loss'] == pytest.approx(-true.mean(), rel=1e-6)
  smoothed = -(0.9 * true + 0.1 * logs.mean(1)).mean()
  assert report['smoothed_loss'] == pytest.approx(smoothed, rel=1e-6)
  assert report['class_accuracy'] == [0.5, 1.0, None]  # no image of it
  lines = classification.table(report, ('one', 'two', 'three')).splitlines()
  assert lines[-1].split()[:2] == ['three', '-']
  assert report['confusion'] == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
  # Bins of 1/15: 0.50 lies in (7/15, 8/15]; 0.70 and 0.72 in (10/15, 11/15].
  expected = (abs(1 - 0.50) + abs((1 + 0) - (0.72 + 0.70))) / 3
  assert report['calibration_error'] == pytest.approx(expected, rel=1e-5)


def test_bins_are_closed_above_and_fifteen():
  """Confidences up to 3/15 are in the third bin, those above in the fourth."""
  logits = np.log(
      [
          [3 / 15 - 1e-4] + [(12 / 15 + 1e-4) / 6] * 6,
          [3 / 15] * 5 + [1e-30] * 2,
          [3 / 15 + 1e-4] + [(12 / 15 - 1e-4) / 6] * 6,
      ]
  )
  sums = _batch_sums(
      jnp.asarray(logits, jnp.float32), jnp.array([0, 0, 0]), jnp.ones(3)
  )
  np.testing.assert_allclose(
      sums['bin_confidence'],
      [0, 0, 6 / 15 - 1e-4, 3 / 15 + 1e-4] + [0] * 11,
      rtol=1e-6,
  )


def test_top5_of_seven_classes():
  logits = np.tile(np.arange(7.0), (7, 1))  # class 6 first, class 0 last
  report = _report(logits, np.arange(7), np.ones(7, np.float32))
  assert report['accuracy'] == pytest.approx(1 / 7)
  assert report['top5_accuracy'] == pytest.approx(5 / 7)


def test_top5_of_five_classes_is_left_out():
  report = _report(np.eye(5), np.arange(5), np.ones(5, np.float32))
  assert report['accuracy'] == 1 and 'top5_accuracy' not in report


def test_counts_of_a_large_split_are_exact():
  """float32 counts only to 2^24."""
  sums = evaluator.Sums(dict)
  for count in (2**24, 1):
    sums.add({'pixels': np.int32(count)})
  assert int(sums.scores()['pixels']) == 2**24 + 1


def test_padding_may_hold_anything():
  logits = np.log(PROBABILITIES)
  logits[3] = np.nan
  report = _report(logits, LABEL, MASK)
  assert report == _report(np.log(PROBABILITIES), LABEL, MASK)


def test_logits_that_are_not_finite_are_wrong_answers():
  """Also of class 0, which `argmax` makes of a NaN."""
  logits = np.log(PROBABILITIES)
  logits[0, 1] = np.nan
  logits[1, 1] = np.inf
  report = _report(logits, LABEL, MASK)
  assert report['not_finite'] == 2 and report['accuracy'] == 0
  assert report['class_accuracy'] == [0, 0, None]
  assert report['confusion'] == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
  assert np.isnan(report['loss']) and report['calibration_error'] < 1
  assert 'images are not finite' in evaluator.not_finite(
      report, 'classification'
  )


@pytest.mark.parametrize('other', [-1, 3])
def test_a_label_that_is_no_class_gives_no_loss(other):
  label = np.array(LABEL)
  label[0] = other
  report = _report(np.log(PROBABILITIES), label, MASK)
  assert np.isnan(report['loss']) and np.isnan(report['smoothed_loss'])
  label = np.array(LABEL)
  label[3] = other  # of padding
  padded = _report(np.log(PROBABILITIES), label, MASK)
  assert padded == _report(np.log(PROBABILITIES), LABEL, MASK)


def test_pixels_whose_logits_are_not_finite_are_wrong():
  """Of two classes with two pixels each, one pixel of class 0 is not finite."""
  logits = np.zeros((1, 2, 2, 2), np.float32)
  labels = np.array([[[0, 0], [1, 1]]])
  logits[0, 1, :, 1] = 1
  logits[0, 0, 0, 1] = np.nan
  sums = jax.jit(segmentation.batch_sums)(logits, labels, np.ones(1))
  report = segmentation.scores(jax.device_get(sums))
  assert report['not_finite'] == 1
  assert report['class_iou'] == report['class_accuracy'] == [0.5, 1.0]
  assert report['pixel_accuracy'] == 0.75
  assert 'of 1 pixels are not finite' in evaluator.not_finite(
      report, 'segmentation'
  )


def test_table_names_every_figure_and_class():
  report = _report(np.log(PROBABILITIES), LABEL, MASK)
  text = classification.table(report, ('cat', 'dog', 'aeroplane'))
  assert 'top-1 accuracy                  66.67%' in text
  for word in ('smoothing 0.1', 'calibration', 'cat', 'aeroplane'):
    assert word in text
  wide = classification.table(report, [f'class{i}' for i in range(100)])
  assert 'class0' not in wide


def _variables(shape=(6, 7, 3)):
  init = jax.jit(functools.partial(tiny.Tiny().init, train=False))
  return init(jax.random.key(0), jnp.zeros((1, *shape)))


def test_a_few_results_are_under_way():
  begun = []

  def results():
    for number in range(20):
      begun.append(number)
      yield {'number': jnp.array(number)}

  for number, found in enumerate(evaluator.fetched(results())):
    assert isinstance(found['number'], np.ndarray)
    assert found['number'] == number
    assert len(begun) == min(number + 9, 20)
  assert number == 19


def test_padding_is_ignored_whatever_the_batch_size():
  data, variables = tiny.arrays(0, 11), _variables()
  doubled = jax.tree.map(lambda leaf: 2 * leaf, variables)
  eval_step = jax.jit(
      evaluator.make_eval_step(tiny.Tiny(), (0.0,) * 3, (1.0,) * 3)
  )

  def figures(batch_size):
    batches = batches_lib.eval_batches(data, batch_size=batch_size)
    weights = {'raw': variables, 'double': doubled}
    found = evaluator.evaluate(eval_step, weights, batches)
    assert found['raw'] != found['double']
    return found['raw']

  whole = figures(11)
  for parted in (figures(4), figures(1)):
    assert whole['count'] == parted['count'] == 11
    assert whole['confusion'] == parted['confusion']
    assert np.isclose(whole['loss'], parted['loss'], rtol=1e-6)
  apply = jax.jit(functools.partial(tiny.Tiny().apply, train=False))
  logits = apply(variables, data.image / 255.0)
  assert whole['accuracy'] == np.mean(logits.argmax(-1) == data.label)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """Returns the folder of a finished run."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    tiny_parts.install(patch)
    tiny_parts.train(folder)
  return folder


def _evaluate(folder, **settings):
  stream = io.StringIO()
  terminal = metrics_log.Terminal(stream)
  report = evaluate_run.evaluate_run(folder, terminal=terminal, **settings)
  return report, stream.getvalue()


def test_agrees_with_the_closing_summary(run):
  summary = json.loads((run / 'summary.json').read_text())
  for name, step in (('last', 'latest'), ('best', 'best')):
    report, said = _evaluate(run, step=step)
    assert report['step'] == summary[name]['step']
    assert report['accuracy'] == summary[name]['test_accuracy']
    assert np.isclose(report['loss'], summary[name]['test_loss'], rtol=1e-6)
    path = run / f'evaluation_test_{report["step"]}.json'
    assert json.loads(path.read_text()) == report
    assert 'top-1 accuracy' in said and str(path) in said
  assert report['count'] == 7 and np.sum(report['confusion']) == 7


def test_weights_that_are_not_finite_end_with_an_error(run, monkeypatch):
  load = evaluate_run.weights_lib.load

  def broken(*args, **how):
    weights = load(*args, **how)
    head = {**weights.variables['params']['head'], 'bias': np.full(3, np.nan)}
    params = {**weights.variables['params'], 'head': head}
    return dataclasses.replace(
        weights, variables={**weights.variables, 'params': params}
    )

  monkeypatch.setattr(evaluate_run.weights_lib, 'load', broken)
  with pytest.raises(UserError, match='7 images are not finite'):
    _evaluate(run, out=run / 'none.json')
  assert not (run / 'none.json').exists()


def test_split_batch_size_and_image_size(run, monkeypatch):
  sizes, batches = [], batches_lib.eval_batches
  monkeypatch.setattr(
      batches_lib,
      'eval_batches',
      lambda records, *, batch_size: sizes.append(batch_size)
      or batches(records, batch_size=batch_size),
  )
  report, _ = _evaluate(run, step='latest', split='val')
  other, _ = _evaluate(run, step='latest', split='val', batch_size=4)
  assert sizes == [5, 4]  # the recipe's, the one that was asked for
  assert report['count'] == other['count'] == 11
  assert report['confusion'] == other['confusion']
  larger, said = _evaluate(run, split='train', image_size=9)
  assert larger['image_size'] == [9, 9] and '9 x 9 pixels' in said
  assert ' was trained for 6 x 7 pixels: at 9 x 9 pixels' in said
  assert list(run.glob('evaluation_train_*_9px.json'))


def test_data_that_have_changed_since_the_run_are_told(run, tmp_path):
  run = shutil.copytree(run, tmp_path / 'run')
  told = 'val are not those that the run was started with'
  assert told not in _evaluate(run, split='val')[1]
  record = json.loads((run / 'data.json').read_text())
  assert record['splits']['val']['content']
  record['splits']['val']['content'] = 'another'
  (run / 'data.json').write_text(json.dumps(record))
  assert told in _evaluate(run, split='val')[1]
  name = json.loads((run / 'config.json').read_text())['data']['name']
  assert told in _evaluate(run, split='val', data=name)[1]
  assert 'warning' not in _evaluate(run, split='test')[1]


def test_the_mean_over_mirror_images_stands_beside_the_plain_scores(run):
  plain, _ = _evaluate(run)
  report, said = _evaluate(run, mirror=True)
  mean = report.pop('mirror')
  assert report == plain and mean['loss'] != plain['loss']
  assert f'mirror image: accuracy {mean["accuracy"]:.2%}' in said


def test_mirrored_logits_by_hand():
  """A model whose logits are the first column counts both ends equally."""

  def apply(variables, image, *, train):
    return image[:, 0, 0]

  step = jax.jit(
      evaluator.make_eval_step(
          types.SimpleNamespace(apply=apply),
          (0.0,) * 3,
          (1.0,) * 3,
          mirror=True,
      )
  )
  image = np.zeros((1, 2, 3, 3), np.uint8)
  image[0, 0, 0], image[0, 0, 2] = [0, 51, 255], [102, 51, 51]
  batch = {'image': image, 'label': [2], 'mask': [1.0]}
  batch = {name: jnp.asarray(array) for name, array in batch.items()}
  logits = np.array([0.2, 0.2, 0.6])
  expected = np.log(np.exp(logits).sum()) - logits[2]
  assert np.isclose(step({}, batch)['loss'], expected)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_an_unreadable_latest_falls_back_and_says_so(run, tmp_path):
  copy = shutil.copytree(run, tmp_path / 'copy')
  for path in (copy / 'checkpoints' / '25').rglob('*'):
    if path.is_file():
      path.write_bytes(b'')
  report, said = _evaluate(copy, step='latest')
  assert report['step'] == 18
  assert 'checkpoint 25 ' in said and 'is damaged' in said
  assert (copy / 'checkpoints' / '25').is_dir()  # reading moves nothing


def test_data_may_lie_elsewhere_now(run, monkeypatch):
  seen = []
  load = evaluate_run.datasets.load
  monkeypatch.setattr(
      evaluate_run.datasets,
      'load',
      lambda name, split, data_dir, **how: seen.append(data_dir)
      or load(name, split, data_dir, **how),
  )
  _evaluate(run, data_dir='elsewhere')
  assert seen == ['elsewhere']


def test_exports_of_two_runs_have_reports_of_their_own(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  weights = types.SimpleNamespace(recipe=None, step=None, which=None)
  weights.folder, names = tmp_path, set()
  for run in ('a/seed0', 'b/seed0'):
    folder = tmp_path / run / 'export'
    folder.mkdir(parents=True)
    (folder / 'model.safetensors').touch()
    for source in (folder, f'{run}/export/model.safetensors'):
      name = evaluate_run.report_path('eval', source, weights, 'd', 'test').name
      names.add(name)
  assert names == {
      f'eval_{run}_seed0_export{model}_d_test.json'
      for run in 'ab'
      for model in ('', '_model')
  }
  found = evaluate_run.report_path('eval', '/x/y', weights, 'd', 'test')
  assert found.name == 'eval_x_y_d_test.json'


def test_other_folders_of_data_have_a_report_of_their_own(
    tmp_path, monkeypatch
):
  recipe = recipes.digits('rmt_compact')
  recipe.data.name, recipe.data.dir = 'd', str(tmp_path)
  weights = types.SimpleNamespace(
      recipe=recipe, step=7, which='raw', folder=tmp_path / 'run'
  )

  def name(data, data_dir):
    return evaluate_run.report_path(
        'eval', 'run', weights, data, 'test', data_dir=data_dir
    ).name

  assert name('d', str(tmp_path)) == 'eval_test_7.json'
  assert name('d', '/x/jpeg') == 'eval_jpeg_test_7.json'
  assert name('e', '/x/jpeg') == 'eval_e_jpeg_test_7.json'
  # The default folder may be named, too.
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  recipe.data.dir = ''
  assert name('d', str(tmp_path)) == 'eval_test_7.json'


def test_long_paths_have_names_that_can_be_written():
  weights = types.SimpleNamespace(
      recipe=None, step=None, which='raw', folder=pathlib.Path()
  )
  names = [
      evaluate_run.report_path(
          'eval', f'/{"ü" * 120}/{last}', weights, 'd', 'test'
      ).name
      for last in 'ab'
  ]
  assert len({*names}) == 2 and max(map(len, map(str.encode, names))) < 200
  assert names[0].endswith('_a_d_test_' + names[0][-13:])


def test_every_slice_has_a_report_of_its_own():
  def path(split, which='raw', **how):
    weights = types.SimpleNamespace(
        recipe=None, step=7, which=which, folder=pathlib.Path()
    )
    found = evaluate_run.report_path(
        'evaluation', 'w', weights, 'd', split, **how
    )
    return found.name

  slices = ['test', 'test[:1000]', 'test[1000:]', 'test[:10%]', 'test[:10]']
  assert len(set(map(path, slices))) == len(slices)
  assert path('test', image_size=64) == 'evaluation_w_d_test_7_64px.json'
  assert path('test', 'ema') == 'evaluation_w_d_test_7_ema.json'


def test_classes_that_begin_alike_are_numbered():
  report = {'class_accuracy': [1.0, 0.5], 'confusion': [[2, 0], [1, 1]]}
  names = 'tomato_early', 'tomato_late'
  _, head, *rows = classification._confusion_lines(report, names)
  assert head.split() == ['0', '1']
  assert [row.split()[:2] for row in rows] == [['0', names[0]], ['1', names[1]]]
