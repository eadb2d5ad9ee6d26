"""Both ends of a worker: a real process, with a program that is made up."""

import json
import os
import sys
import time

import pytest

from gswinrmt_jax.benchmark import process, worker
from gswinrmt_jax.errors import UserError

FAKE = """
import os, sys, time
from gswinrmt_jax.benchmark import worker

def build(spec):
  print('noise on the standard output')
  if spec['task'] == 'refused':
    raise ValueError('no such thing' + chr(10) + 'second line')
  if spec['task'] == 'dies':
    sys.exit('last words')
  held = []
  def ready():
    time.sleep(0.3 if spec['task'] == 'ready' else 0)
  def close():
    if 'closed' in spec:
      open(spec['closed'], 'w').close()
      time.sleep(100 * (spec['task'] == 'stays'))
  def run(calls):
    held[:] = [bytearray(b'x' * 50_000_000 if calls == 7 else b'x')]
    time.sleep(0.01 * calls)
  cores = len(os.sched_getaffinity(0))
  omp = os.environ.get('OMP_NUM_THREADS')
  facts = {'cores': cores, 'omp': omp}
  return worker.Program(run, facts, ready=ready, close=close)

worker.serve(build)
"""


@pytest.fixture
def fake(monkeypatch, tmp_path):
  path = tmp_path / 'fake.py'
  path.write_text(FAKE)
  monkeypatch.setattr(process, '_JAX', (str(path),))


def test_a_worker_builds_runs_and_tells_its_peak(fake):
  arm = process.Process({'task': 'fine'}, None)
  try:
    assert arm.facts['build_seconds'] >= 0.01
    assert 0.05 <= arm.run(5) < 1.0
    before, of = arm.peak()
    arm.run(7)
    after, _ = arm.peak()
  finally:
    arm.close()
  assert of == 'process' and 30e6 < after - before < 100e6


def test_cores_are_the_worker_s_and_ours_come_back(fake):
  ours = os.sched_getaffinity(0)
  arm = process.Process({'task': 'fine'}, process.pinned(1))
  arm.close()
  assert (arm.facts['cores'], arm.facts['omp']) == (1, '1')
  assert os.sched_getaffinity(0) == ours
  with pytest.raises(UserError, match='--threads is 10000'):
    process.pinned(10000)


def test_getting_ready_is_not_timed(fake):
  arm = process.Process({'task': 'ready'}, None)
  try:
    begin = time.perf_counter()
    assert arm.run(1) < 0.2
    assert time.perf_counter() - begin >= 0.3
  finally:
    arm.close()


@pytest.mark.parametrize('task', ['fine', 'stays'])
def test_a_worker_ends_what_it_began_unless_it_takes_long(
    fake, monkeypatch, tmp_path, task
):
  monkeypatch.setattr(process, '_END', 1.0 if task == 'stays' else 50.0)
  path = tmp_path / 'closed'
  begin = time.perf_counter()
  process.Process({'task': task, 'closed': str(path)}, None).close()
  assert path.exists() and time.perf_counter() - begin < 20


@pytest.mark.parametrize(
    ('task', 'said'),
    [('refused', '^ValueError: no such thing$'), ('dies', 'last words')],
)
def test_why_a_program_does_not_run_is_one_line(fake, task, said):
  with pytest.raises(process.ArmError, match=said):
    process.Process({'task': task}, None)


def test_peers_need_the_source_tree(monkeypatch, tmp_path):
  monkeypatch.setattr(process, '_TORCH', tmp_path / 'none.py')
  with pytest.raises(process.ArmError, match='source tree'):
    process.Process({'task': 'train', 'peer': 'eager'}, None)


def test_the_device_s_peak_counts_where_there_is_one():
  program = worker.Program(lambda calls: None, {}, lambda: 123)
  assert worker._peak(program) == {'bytes': 123, 'of': 'device'}
  assert worker._high_water('VmPeak: 9 kB\nVmHWM:\t 12 kB\n') == 12 * 1024
  assert json.dumps(worker._peak(worker.Program(print, {})))
  assert sys.stdout  # untouched: `serve` alone takes it away
