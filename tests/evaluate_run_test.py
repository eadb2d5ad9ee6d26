"""The evaluation of a run folder, with a tiny model in place of a real one."""

import io
import json
import shutil

import numpy as np
import pytest
import tiny_parts

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.evals import evaluate_run
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import train_loop


@pytest.fixture(scope='module', autouse=True)
def _compiled_once(tmp_path_factory):
  with tiny_parts.compiled_once(tmp_path_factory.mktemp('compiled')):
    yield


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
  tiny_parts.install(monkeypatch)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  return tmp_path_factory.mktemp('runs') / 'run'


@pytest.fixture
def run(trained):
  """A finished run; trained once."""
  if not trained.exists():
    train_loop.train(
        tiny_parts.recipe(), trained, metrics_log.Terminal(io.StringIO())
    )
  return trained


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


def test_split_batch_size_and_image_size(run):
  report, _ = _evaluate(run, step='latest', split='val')
  other, _ = _evaluate(run, step='latest', split='val', batch_size=4)
  assert report['count'] == other['count'] == 11
  assert report['confusion'] == other['confusion']
  larger, said = _evaluate(run, split='train', image_size=9)
  assert larger['image_size'] == [9, 9] and '9 x 9 pixels' in said
  assert list(run.glob('evaluation_train_*_9px.json'))


def test_a_step_that_is_not_there(run):
  with pytest.raises(UserError, match=r'no checkpoint 99 .*18, 25'):
    _evaluate(run, step=99)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_an_unreadable_latest_falls_back_and_says_so(run, tmp_path):
  copy = shutil.copytree(run, tmp_path / 'copy')
  for path in (copy / 'checkpoints' / '25').rglob('*'):
    if path.is_file():
      path.write_bytes(b'')
  report, said = _evaluate(copy, step='latest')
  assert report['step'] == 18
  assert 'checkpoint 25 ' in said and 'cannot be read' in said
  assert (copy / 'checkpoints' / '25').is_dir()  # reading moves nothing


def test_no_run_and_no_checkpoint(tmp_path, run):
  with pytest.raises(UserError, match='is no run folder'):
    _evaluate(tmp_path)
  shutil.copy(run / 'config.json', tmp_path)
  with pytest.raises(UserError, match='no checkpoints yet'):
    _evaluate(tmp_path)
  (tmp_path / 'checkpoints').mkdir()
  with pytest.raises(UserError, match='no checkpoints yet'):
    _evaluate(tmp_path)


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


def test_every_slice_has_a_report_of_its_own():
  slices = ['test', 'test[:1000]', 'test[1000:]', 'test[:10%]', 'test[:10]']
  names = {evaluate_run._file_name(name, 7, 'raw', None) for name in slices}
  assert len(names) == len(slices)
  name = evaluate_run._file_name('test', 7, 'raw', 64)
  assert name == 'evaluation_test_7_64px.json'
  name = evaluate_run._file_name('test', 7, 'ema', 64)
  assert name == 'evaluation_test_7_ema_64px.json'
