"""Tests interleaved timing, worker processes, records and tables."""

import json
import os
import pathlib

import pytest

from gswinrmt_jax.benchmark import measure, models, record, start, worker
from gswinrmt_jax.errors import UserError


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
  found = measure.interleaved(programs, [2, 4], 3, said.append)
  assert journal == [('a', 2), ('b', 4)] * 3
  assert found == [[0.5] * 3, [0.25] * 3] and len(said) == 3


def test_warm_up_lasts_and_tells_how_many_calls_fill_the_time():
  journal = []
  assert measure.warm_up(Clocked('a', 0.1, journal), 1.0) == 10
  assert sum(calls for _, calls in journal) >= 10
  # A slow program warms up for two calls, and runs once per repeat.
  journal.clear()
  assert measure.warm_up(Clocked('a', 5.0, journal), 1.0) == 1
  assert journal == [('a', 1), ('a', 1)]


def test_median_and_spread():
  found = measure.figures((4.0, 1.0, 2.0, 3.0, 5.0))
  assert found['milliseconds'] == 3000
  assert found['spread'] == pytest.approx((4 - 2) / 2 / 3)
  assert found['repeats_ms'] == [4000, 1000, 2000, 3000, 5000]
  assert measure.figures((1.0,))['spread'] == 0.0


PROGRAM = """
import os, sys
from gswinrmt_jax.benchmark import worker

def build(spec):
  print('noise on the standard output')
  if spec['task'] == 'refused':
    raise ValueError('no such thing' + chr(10) + 'second line')
  if spec['task'] == 'dies':
    os._exit(3)
  calls = []
  def run(count):
    if count == 7:
      raise RuntimeError('seven')
    calls.append(count)
  def close():
    with open(spec['closed'], 'w') as file:
      print(calls, file=file)
    if spec['task'] == 'stays':
      import time
      time.sleep(100)
  facts = {
      'cores': len(os.sched_getaffinity(0)),
      'omp': os.environ.get('OMP_NUM_THREADS'),
      'jax': 'jax' in sys.modules,
  }
  return worker.Program(run, facts, close=close)
"""


@pytest.fixture
def spec(monkeypatch, tmp_path):
  path = tmp_path / 'programs.py'
  path.write_text(PROGRAM)
  monkeypatch.setattr(worker, '_TORCH', path)
  closed = str(tmp_path / 'closed')
  return {'peer': 'made up', 'task': 'fine', 'closed': closed}


def test_a_worker_builds_runs_and_ends(spec, capfd):
  ours = os.sched_getaffinity(0)
  process = worker.Worker(spec, worker.choose_cores(1))
  assert process.facts['build_seconds'] > 0
  assert (process.facts['cores'], process.facts['omp']) == (1, '1')
  assert not process.facts['jax']  # it chose cores before any import
  assert process.run(5) > 0
  size, owner = process.peak()
  assert size > 1e6 and owner == 'process'
  with pytest.raises(worker.WorkerError, match=r'^RuntimeError: seven$'):
    process.run(7)
  process.close()
  assert pathlib.Path(spec['closed']).read_text() == '[1, 5]\n'
  assert os.sched_getaffinity(0) == ours
  assert 'noise' not in capfd.readouterr().out


def test_a_worker_that_takes_long_to_end_is_ended(spec, monkeypatch):
  monkeypatch.setattr(worker, '_GRACE', 0.1)
  worker.Worker({**spec, 'task': 'stays'}, None).close()


@pytest.mark.parametrize(
    ('task', 'said'),
    [
        ('refused', '^ValueError: no such thing$'),
        ('dies', r'^the process ended \(3\)$'),
    ],
)
def test_why_a_program_does_not_run_is_one_line(spec, task, said):
  with pytest.raises(worker.WorkerError, match=said):
    worker.Worker({**spec, 'task': task}, None)


def test_getting_ready_is_not_timed(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(worker.time, 'perf_counter', lambda: now[0])

  def spend(seconds):
    now[0] += seconds

  program = worker.Program(spend, {}, ready=lambda: spend(100))
  assert worker._timed(program, 3) == 3


def test_peers_need_the_source_tree(monkeypatch, tmp_path):
  monkeypatch.setattr(worker, '_TORCH', tmp_path / 'none.py')
  with pytest.raises(worker.WorkerError, match='source tree'):
    worker.Worker({'task': 'train', 'peer': 'eager'}, None)


def test_more_cores_than_there_are_cannot_be_chosen():
  with pytest.raises(UserError, match='--threads is 10000'):
    worker.choose_cores(10000)


def test_the_device_s_peak_counts_where_there_is_one():
  program = worker.Program(lambda calls: None, {}, lambda: 123)
  assert worker.peak(program) == (123, 'device')


def _row(name, *seconds, images=4, **facts):
  return {
      'program': name,
      **measure.figures(seconds),
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
  measure.compare(rows, 1e12)
  assert ours['milliseconds'] == 500 and ours['images_per_second'] == 8
  assert ours['mfu'] == pytest.approx(0.1 / 0.5)
  assert theirs['relative'] == pytest.approx(0.5 / 0.75)
  assert 'mfu' not in theirs and rows[2] == _absent()
  json.dumps(rows)


def test_the_ratio_is_the_median_of_those_within_a_round():
  """The median of 2, 1, 2, 3, 5 is 2; the ratio of medians would be 3."""
  slow = _row('slow', 4.0, 1.0, 2.0, 3.0, 5.0)
  fast = _row('fast', 2.0, 1.0, 1.0, 1.0, 1.0)
  measure.compare([slow, fast], 1e12)
  assert fast['relative'] == pytest.approx(2.0)


def test_the_ratio_is_of_images_not_of_calls():
  """A peer that takes half as many images per call is not twice as fast."""
  ours, half = _row('ours', 1.0, images=8), _row('half', 0.5, images=4)
  measure.compare([ours, half], 1e12)
  assert half['relative'] == pytest.approx(1.0)


def test_without_a_first_all_others_are_compared_with_nothing():
  rows = [_absent(), _row('theirs', 0.5)]
  measure.compare(rows, 1e12)
  assert rows[1]['relative'] is None and '|          |' in record.table(rows)


def test_the_table():
  theirs = {**_row('theirs', 0.75), 'peak_bytes': None, 'peak_of': 'not read'}
  rows = [_row('ours', 0.5, 1.0, 0.5, flops=1e11), theirs, _absent()]
  theirs['repeats_ms'] *= 3
  measure.compare(rows, 1e12)
  lines = record.table(rows).splitlines()
  cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]
  assert cells[0][:2] == ['', 'ms'] and len({len(c) for c in cells[:4]}) == 1
  assert cells[2] == [
      'ours', '500', '25.0%', '8', '1.000', '20.0%', '3.00 (device)'
  ]  # fmt: skip
  assert cells[3][4] == '0.667' and cells[3][-1] == 'not read'
  assert lines[-1] == 'absent: not measured: no wheel'


def test_where_it_ran_and_where_it_goes():
  facts = {'platform': 'cpu', 'device': 'cpu', 'versions': {'jax': '1'}}
  machine = record.machine(facts, 1)
  assert machine['threads'] == 1 and machine['command'].startswith('gswinrmt')
  assert machine['device'] == 'cpu' and machine['cores'] >= 1
  json.dumps(machine)
  path = record.default_path(['rmt_t', 'train'], 'NVIDIA H200')
  assert str(path) == 'benchmarks/results/rmt_t_train_nvidia_h200.json'


MODEL = {
    'task': 'inference',
    'model': 'retention_compact',
    'fields': {},
    'batch': 16,
    'image_size': 224,
    'classes': 10,
}


def test_points():
  batches = models.points('batch', MODEL)
  assert list(batches) == [2, 4, 8, 16, 32]
  assert batches[32] == {**MODEL, 'batch': 32}
  assert list(models.points('batch', {**MODEL, 'batch': 1})) == [1, 2]
  assert list(models.points('resolution', MODEL)) == [224, 288, 352, 416, 512]
  depths = models.points('depth', MODEL)
  assert list(depths) == [9, 12, 15, 18]
  assert depths[9]['fields']['depths'] == [2, 2, 3, 2]


def test_the_exponent_is_that_of_the_power_law():
  macs = (1.0, 2.0, 4.0, 8.0)
  steep = models.exponent(macs, [m**1.5 for m in macs])
  assert steep == pytest.approx(1.5)
  assert models.exponent(macs, [3.0] * 4) == pytest.approx(0.0)


# Replaces `gswinrmt train`: logs step 1 after a while, and keeps running.
TRAINING = """
import pathlib, sys, time
(workdir,) = [a.partition('=')[2] for a in sys.argv if 'workdir' in a]
time.sleep(0.3)
folder = pathlib.Path(workdir)
folder.mkdir()
(folder / 'metrics.jsonl').write_text('{"kind": "train", "step": 1}')
time.sleep(0.2)
(folder / 'metrics.jsonl').write_text('{"kind": "train", "step": 1}' + chr(10))
time.sleep(60)
"""


@pytest.fixture
def trained(monkeypatch, tmp_path):
  path = tmp_path / 'training.py'
  path.write_text(TRAINING)
  monkeypatch.setattr(start, '_TRAIN', (str(path),))
  return path


def test_it_times_until_the_first_step_is_logged_whole(trained):
  rows = start.measure(2, None)
  assert [row['what'] for row in rows] == [*start._STEPS]
  for row in rows:
    assert all(seconds >= 0.5 for seconds in row['repeats'])
  assert start.table(rows).count('\n') == 3
  json.dumps(rows)


def test_the_row_says_how_it_was_compiled(trained):
  """The fake training fails unless it gets the effort that it expects."""
  for effort in start._STEPS.values():
    asked = f'assert "--config.compile_effort={effort}" in sys.argv'
    trained.write_text(TRAINING.replace('time\n', f'time\n{asked}\n', 1))
    start._first_step_seconds(effort)  # would raise


def test_failures_are_reported(trained):
  trained.write_text('')
  with pytest.raises(worker.WorkerError, match='no first step'):
    start._first_step_seconds('quick')
