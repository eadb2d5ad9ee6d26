"""Tests what speed.py measures, prints and writes, on fakes."""

import json
from typing import ClassVar

import pytest
import speed
import worker


class Clocked:
  """A program that takes constant time per call and logs its calls."""

  def __init__(self, name, seconds, journal):
    self.name, self.seconds, self.journal = name, seconds, journal

  def run(self, calls):
    self.journal.append((self.name, calls))
    return calls * self.seconds


def test_programs_take_turns():
  journal = []
  programs = [Clocked('a', 0.5, journal), Clocked('b', 0.25, journal)]
  said = []
  found = speed.interleaved(programs, [2, 4], 3, said.append)
  assert journal == [('a', 2), ('b', 4)] * 3
  assert found == [[0.5] * 3, [0.25] * 3] and len(said) == 3


def test_warm_up_lasts_and_tells_how_many_calls_fill_the_time():
  journal = []
  assert speed.warm_up(Clocked('a', 0.1, journal), 1.0) == 10
  assert sum(calls for _, calls in journal) >= 10
  # A slow program warms up for two calls, and runs once per repeat.
  journal.clear()
  assert speed.warm_up(Clocked('a', 5.0, journal), 1.0) == 1
  assert journal == [('a', 1), ('a', 1)]


def test_median_and_spread():
  found = speed.figures((4.0, 1.0, 2.0, 3.0, 5.0))
  assert found['milliseconds'] == 3000
  assert found['spread'] == pytest.approx((4 - 2) / 2 / 3)
  assert found['repeats_ms'] == [4000, 1000, 2000, 3000, 5000]
  assert speed.figures((1.0,))['spread'] == 0.0


def _row(name, *seconds, images=4, **facts):
  return {
      'program': name,
      **speed.figures(seconds),
      'peak_bytes': 3_000_000_000,
      'peak_of': 'device',
      'facts': {'images': images, **facts},
  }


def _absent():
  return {'program': 'absent', 'not_measured': 'no wheel'}


def test_rows_compare_others_with_the_first():
  ours = _row('ours', 0.5, 1.0, 0.5, flops=1e11)
  theirs = _row('theirs', 0.75, 1.5, 0.75)
  rows = [ours, theirs, _absent()]
  speed.compare(rows, 1e12)
  assert ours['milliseconds'] == 500 and ours['images_per_second'] == 8
  assert ours['mfu'] == pytest.approx(0.1 / 0.5)
  assert theirs['relative'] == pytest.approx(0.5 / 0.75)
  assert 'mfu' not in theirs and rows[2] == _absent()
  json.dumps(rows)


def test_the_ratio_is_the_median_within_a_round_of_images_not_of_calls():
  """2 images in half of 2, 1, 2, 3, 5 times the time: the median is 1."""
  slow = _row('slow', 4.0, 1.0, 2.0, 3.0, 5.0)
  fast = _row('fast', 2.0, 1.0, 1.0, 1.0, 1.0, images=2)
  speed.compare([slow, fast], 1e12)
  assert fast['relative'] == pytest.approx(1.0)


def test_the_table():
  theirs = {**_row('theirs', 0.75), 'peak_of': 'process'}
  facts = {'temporaries': 125_000_000, 'page_faults': 1234}
  ours = _row('ours', 0.5, 1.0, 0.5, flops=1e11, **facts)
  rows = [ours, theirs, _absent()]
  theirs['repeats_ms'] *= 3
  speed.compare(rows, 1e12)
  lines = speed.table(rows).splitlines()
  cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]
  assert cells[0][:2] == ['', 'ms'] and len({len(c) for c in cells[:4]}) == 1
  assert cells[2] == [
      'ours', '500', '25.0%', '8', '1.000', '20.0%', '3.00 (device)', '0.125',
      '1,234',
  ]  # fmt: skip
  assert cells[3][4] == '0.667' and cells[3][-3:] == ['3.00 (process)', '', '']
  assert lines[-1] == 'absent: not measured: no wheel'


SPEC = {
    'task': 'inference',
    'model': 'retention_compact',
    'fields': {'gate': False},
    'batch': 16,
    'image_size': 224,
    'classes': 10,
}


def test_points():
  batches = speed.points('batch', SPEC)
  assert list(batches) == [2, 4, 8, 16, 32]
  assert batches[32] == {**SPEC, 'batch': 32}
  assert list(speed.points('batch', {**SPEC, 'batch': 1})) == [1, 2]
  assert list(speed.points('resolution', SPEC)) == [224, 288, 352, 416, 512]


def test_the_exponent_is_that_of_the_power_law():
  macs = (1.0, 2.0, 4.0, 8.0)
  steep = speed.exponent(macs, [m**1.5 for m in macs])
  assert steep == pytest.approx(1.5)
  assert speed.exponent(macs, [3.0] * 4) == pytest.approx(0.0)


def test_peers(tmp_path):
  (tmp_path / 'gswinrmt_jax').mkdir()
  for peer, change in {
      'plain': {'plain': True},
      'muon': {'muon': True},
      'eager': {'peer': 'eager'},
      str(tmp_path): {'checkout': str(tmp_path)},
      'A_B=-c 1 LD_PRELOAD=x.so': {
          'env': {'A_B': '-c 1', 'LD_PRELOAD': 'x.so'}
      },
      'remat=blocks  depths=(1, 2)': {
          'fields': {'gate': False, 'remat': 'blocks', 'depths': (1, 2)}
      },
      'image_size=288': {'image_size': 288},
  }.items():
    assert speed.peer_of(SPEC, peer) == {**SPEC, **change}


FACTS = {
    'platform': 'cpu',
    'device': 'cpu',
    'dtype': 'float32',
    'versions': {},
    'macs': 100,
    'flops': 1000,
}


class Process:
  """A fake worker: a call takes 1 s, a peer's 2 s; peer 'compile' fails."""

  journal: ClassVar[list] = []

  def __init__(self, spec, cores):
    if spec.get('peer') == 'compile':
      raise worker.WorkerError('it fell over')
    self.spec = spec
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
  bench = speed.Bench(repeats=2, seconds=1.0, say=said.append)
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
  assert 'bad: not measured: it fell over' in said[-1]
  ran = _tasks(journal, 'run')
  assert ran[-6:] == ['train', 'eager', 'matmul'] * 2
  # The programs have ended; the matmul still runs.
  assert sorted(_tasks(journal, 'close')) == ['eager', 'train']
  bench.close()
  assert sorted(_tasks(journal, 'close')) == ['eager', 'matmul', 'train']


def _run(tmp_path, *options):
  path = tmp_path / 'found.json'
  command = ['--json', str(path), '--seconds=1', '--repeats=2']
  status = speed.main([*command, *options])
  return status, json.loads(path.read_text())


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
  assert rows[2]['plain'] and rows[3]['not_measured'] == 'it fell over'
  assert found['machine']['device'] == 'cpu'
  assert 'rmt_t, train: eager | 2000' in capsys.readouterr().out


def test_latency_and_depthwise_convolutions(journal, tmp_path):
  _, found = _run(tmp_path, '--model', 'retention_compact', '--latency')
  ((row,),) = (group['rows'] for group in found['groups'])
  assert row['batch'] == 1 and row['image_size'] == 32
  _, found = _run(tmp_path, '--depthwise')
  rows = [group['rows'] for group in found['groups']]
  assert [row[0]['kernel'] for row in rows] == [3, 5, 3, 5]
  assert [row['impl'] for row in rows[0]] == ['shift', 'conv']


def test_the_command_measures_how_time_grows(journal, tmp_path):
  status, found = _run(tmp_path, '--scaling=batch', '--inference', '--batch=8')
  (group,) = found['groups']
  assert status == 0 and group['axis'] == 'batch'
  assert [row['batch'] for row in group['rows']] == [1, 2, 4, 8, 16]
  assert group['exponent'] == pytest.approx(0.0)  # the fake time is constant


def test_mistakes_are_one_line(journal, capsys, tmp_path):
  (tmp_path / 'found.json').mkdir()
  for options, said in (
      (['--json', str(tmp_path / 'found.json')], 'it is a folder'),
      (['--model', 'rmt_tt'], "no model 'rmt_tt' (did you mean rmt_t?)"),
      (['--peers', 'egaer'], 'eager, compile (did you mean eager?), fields'),
      (['--threads=10000'], '--threads is 10000: there are'),
      (['--depthwise', '--scaling=batch'], 'not allowed with'),
      (['--repeats=0'], '--repeats must be at least 1'),
  ):
    with pytest.raises(SystemExit) as stopped:
      speed.main(options)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


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
