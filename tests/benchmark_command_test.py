"""Tests what `gswinrmt benchmark` measures, prints and writes, on fakes."""

import json
import os
import pathlib
import signal
import time
from typing import ClassVar

import pytest

from gswinrmt_jax.benchmark import (
    measure,
    models,
    pipeline,
    record,
    worker,
)
from gswinrmt_jax.commands import main

FACTS = {
    'platform': 'cpu',
    'device': 'cpu',
    'dtype': 'float32',
    'versions': {},
    'images': 2,
    'macs': 100,
    'flops': 1000,
}


class Process:
  """A fake worker: a call takes 1 s, a peer's 2 s; peer 'compile' fails."""

  journal: ClassVar[list] = []

  def __init__(self, spec, cores):
    if spec.get('peer') == 'compile':
      raise worker.WorkerError('it fell over')
    self.spec, self.cores = spec, cores
    self.facts = {**FACTS, 'images': spec.get('batch', 1)}
    self.journal.append(('start', spec))

  def run(self, calls):
    self.journal.append(('run', self.spec))
    return calls * (2.0 if 'peer' in self.spec else 1.0)

  def peak(self):
    return 5_000_000_000, 'process'

  def close(self):
    self.journal.append(('close', self.spec))


@pytest.fixture
def journal(monkeypatch):
  monkeypatch.setattr(worker, 'Worker', Process)
  monkeypatch.setattr(Process, 'journal', [])
  return Process.journal


def _tasks(journal, kind):
  return [
      spec.get('peer', spec['task']) for what, spec in journal if what == kind
  ]


def test_programs_and_the_matmul_share_the_rounds(journal):
  said = []
  bench = measure.Bench(repeats=2, seconds=1.0, say=said.append)
  programs = {
      'ours': {'task': 'train', 'batch': 2},
      'bad': {'task': 'train', 'peer': 'compile'},
      'eager': {'task': 'train', 'peer': 'eager', 'batch': 2},
  }
  found = bench.measure(programs)
  ours, bad, eager = found['rows']
  assert ours['dtype'] == 'float32' and ours['relative'] == 1
  assert ours['mfu'] == 1  # 1,000 FLOP/s, as many as the matmul
  assert bad == {
      'program': 'bad', 'task': 'train', 'peer': 'compile', 'dtype': 'float32',
      'platform': 'cpu', 'not_measured': 'it fell over',
  }  # fmt: skip
  assert eager['milliseconds'] == 2000 and eager['peak_bytes'] == 5e9
  assert found['rates'] == {'flops': 1000}
  assert found['rates_spread'] == {'matmul': 0}
  assert 'bad: not measured: it fell over' in said[-1]
  ran = _tasks(journal, 'run')
  assert ran[-6:] == ['train', 'eager', 'matmul'] * 2
  # The programs have ended; the matmul still runs.
  assert sorted(_tasks(journal, 'close')) == ['eager', 'train']
  bench.close()
  assert sorted(_tasks(journal, 'close')) == ['eager', 'matmul', 'train']


def _run(tmp_path, *options):
  path = tmp_path / 'found.json'
  command = ['benchmark', '--json', str(path), '--seconds=1', '--repeats=2']
  status = main.main([*command, *options])
  return status, json.loads(path.read_text()) if path.exists() else None


def test_the_command_measures_models_beside_peers(journal, capsys, tmp_path):
  status, found = _run(
      tmp_path, '--model', 'rmt_t', 'rmt_compact', '--batch=4', '--train',
      '--peers', 'eager', 'plain', 'compile',
  )  # fmt: skip
  assert status == 0
  sizes = [group['rows'][0]['image_size'] for group in found['groups']]
  assert sizes == [224, 32]  # each as in its paper
  rows = found['groups'][0]['rows']
  assert [row.get('relative') for row in rows] == [1.0, 0.5, 1.0, None]
  assert rows[2]['plain']
  assert rows[3]['not_measured'] == 'it fell over'
  assert found['machine']['device'] == 'cpu'
  assert 'rmt_t, train: eager | 2000' in capsys.readouterr().out


def test_a_result_that_cannot_be_written_is_refused_first(
    journal, tmp_path, capsys
):
  (tmp_path / 'found.json').mkdir()
  path = str(tmp_path / 'found.json')
  assert main.main(['benchmark', '--json', path]) == 2
  assert 'found.json: it is a folder' in capsys.readouterr().err
  assert not journal


def test_the_command_measures_how_time_grows(journal, tmp_path):
  status, found = _run(tmp_path, '--scaling=batch', '--inference', '--batch=8')
  (group,) = found['groups']
  assert status == 0 and group['axis'] == 'batch'
  assert [row['batch'] for row in group['rows']] == [1, 2, 4, 8, 16]
  assert group['exponent'] == pytest.approx(0.0)  # the fake time is constant


def test_the_command_times_depthwise_convolutions(journal, tmp_path):
  _, found = _run(tmp_path, '--depthwise')
  kernels = [group['rows'][0]['kernel'] for group in found['groups']]
  assert kernels == [3, 5, 3, 5]
  assert [row['impl'] for row in found['groups'][0]['rows']] == [
      'shift', 'conv'
  ]  # fmt: skip


def test_the_command_compares_a_feed_with_none(journal, monkeypatch, tmp_path):
  prepared = []
  monkeypatch.setattr(
      pipeline, 'make_data', lambda *args, **how: prepared.append(args)
  )
  begin = Process.__init__

  def fed(self, spec, cores):
    begin(self, spec, cores)
    if spec.get('storage') == 'decode':
      raise worker.WorkerError('no memory')
    if spec.get('storage'):
      assert pathlib.Path(spec['dir']).is_dir()
      self.spec = {**spec, 'peer': 'takes two seconds'}

  monkeypatch.setattr(Process, '__init__', fed)
  options = ['--model', 'rmt_compact', 'rmt_t', '--batch=6', '--images=1000']
  status, found = _run(tmp_path, '--pipeline', '--workers=3', *options)
  assert status == 1  # one of our own was not measured
  rows = found['groups'][1]['rows']
  assert [row['storage'] for row in rows] == [None, 'device', 'disk', 'decode']
  assert [row.get('relative') for row in rows] == [1.0, 0.5, 0.5, None]
  assert {row['workers'] for row in rows} == {3}
  # Written once for all programs of a model, and removed.
  assert [count for _, count in prepared] == [1000, 1000]
  assert not any(folder.exists() for folder, _ in prepared)
  status, found = _run(tmp_path, '--pipeline', 'memory')
  assert status == 0 and prepared[-1][1] == 2048
  names = [row['program'] for row in found['groups'][0]['rows']]
  assert names == ['retention_compact, without', 'retention_compact, memory']


def test_latency_is_written_where_the_report_looks(
    journal, monkeypatch, tmp_path
):
  import made_up_runs

  from gswinrmt_jax.experiments import results

  folders = [tmp_path / 'runs' / name for name in ('a', 'b')]
  for folder, model in zip(folders, ('swat', 'rmt'), strict=True):
    made_up_runs.write(folder, f'cifar10_{model}', [0.5])
  status, found = _run(tmp_path, '--latency', '--run', *map(str, folders))
  row = found['groups'][0]['rows'][0]
  assert status == 0 and row['batch'] == 1 and row['image_size'] == 32
  runs, problems = results.gather([tmp_path / 'runs'])
  assert [run.latency for run in runs] == [1000.0] * 2 and not problems
  # Interleaved with each other and with the matmul in each round.
  calls = [spec for what, spec in journal if what == 'run']
  ran = [spec.get('model', spec['task']) for spec in calls]
  assert ran[-3:] == ['swat_compact', 'rmt_compact', 'matmul']


def test_a_segmenter_is_refused_by_name(journal, capsys, tmp_path):
  import made_up_runs

  made_up_runs.write(tmp_path / 'a', 'camvid', [0.5])
  assert main.main(['benchmark', '--run', str(tmp_path / 'a')]) == 2
  assert (
      'a: latency is measured for classifiers only' in capsys.readouterr().err
  )


def test_few_runs_are_alive_at_once(journal, monkeypatch, tmp_path):
  import made_up_runs

  monkeypatch.setattr(models, '_TOGETHER', 2)
  folders = [str(tmp_path / f'run{k}') for k in range(3)]
  for folder in folders:
    made_up_runs.write(pathlib.Path(folder), 'cifar10_swat', [0.5])
  _, found = _run(tmp_path, '--latency', '--run', *folders)
  assert [len(group['rows']) for group in found['groups']] == [2, 1]
  assert all((pathlib.Path(one) / 'latency.json').exists() for one in folders)


def test_latency_is_that_of_one_image(journal, tmp_path):
  """Whatever --batch is."""
  _, found = _run(tmp_path, '--latency', '--batch=4', '--model=rmt_compact')
  assert found['groups'][0]['rows'][0]['batch'] == 1


def test_mistakes_are_one_line(journal, capsys, tmp_path):
  for options, said in (
      (['--seconds=0'], '--seconds'),
      (['--run', 'x', '--peers', 'eager'], '--run takes no --peers'),
      (['--start', '--latency'], '--start takes no --latency'),
      (['--depthwise', '--train'], '--depthwise takes no --train'),
      (['--workers=2'], '--images and --workers are for --pipeline'),
      (['--model', 'rmt_x'], 'rmt_'),
      (['--threads=0'], '--threads'),
      (['--pipeline', '--images=0'], '--images'),
      (['--pipeline', '--workers=-1'], '--workers'),
      (['--pipeline', '--images=9'], 'there are 10 classes'),
      (['--pipeline', '--peers', 'plain'], '--pipeline takes no --peers'),
      (['--pipeline', '--scaling=depth'], 'not allowed with'),
      (['--start', '--depthwise'], 'not allowed with'),
  ):
    assert main.main(['benchmark', *options]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count('\n') == 1


def test_a_failure_of_ours_is_the_exit_status(journal, monkeypatch, tmp_path):
  begin = Process.__init__

  def fail(self, spec, cores):
    if spec['task'] == 'inference':
      raise worker.WorkerError('no memory')
    begin(self, spec, cores)

  monkeypatch.setattr(Process, '__init__', fail)
  status, found = _run(tmp_path, '--inference')
  assert status == 1
  assert found['groups'][0]['rows'][0]['not_measured'] == 'no memory'


def test_sigterm_ends_it_as_ctrl_c_does(monkeypatch, capsys):
  """SIGTERM must reach `close`, which ends processes and removes folders."""
  ended = []

  class Bench:

    def __init__(self, **settings):
      self.facts, self.say = {}, settings['say']

    def close(self):
      ended.append(True)

  def beside_peers(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

  before = signal.getsignal(signal.SIGTERM)
  monkeypatch.setattr(measure, 'Bench', Bench)
  monkeypatch.setattr(record, 'machine', lambda *args: {'device': 'none'})
  monkeypatch.setattr(models, 'beside_peers', beside_peers)
  assert main.main(['benchmark', '--model=rmt_compact']) == 143
  assert 'stopped by SIGTERM, nothing was written' in capsys.readouterr().err
  assert ended and signal.getsignal(signal.SIGTERM) is before
