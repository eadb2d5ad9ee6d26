"""Tests the processes of timed programs."""

import os
import pathlib

import pytest
import worker

PROGRAM = """
import os, sys
import worker

def build(spec):
  print('noise on the standard output')
  if spec['task'] == 'refused':
    raise ValueError('no such thing' + chr(10) + 'second line')
  if spec['task'] == 'dies':
    os._exit(3)
  def run(count):
    if count == 7:
      raise RuntimeError('seven')
  facts = {
      'cores': len(os.sched_getaffinity(0)),
      'variables': [os.environ.get(name) for name in ('OMP_NUM_THREADS', 'X')],
      'jax': 'jax' in sys.modules,
  }
  return worker.Program(run, facts)
"""


@pytest.fixture
def spec(monkeypatch, tmp_path):
  """A spec of the program above, which replaces torch_programs.py."""
  (tmp_path / 'torch_programs.py').write_text(PROGRAM)
  source = pathlib.Path(worker.__file__).read_text()
  (tmp_path / 'worker.py').write_text(source)
  monkeypatch.setattr(worker, '__file__', str(tmp_path / 'worker.py'))
  return {'peer': 'made up', 'task': 'fine'}


def test_a_worker_builds_runs_and_ends(spec, capfd):
  ours = os.sched_getaffinity(0)
  spec = {**spec, 'env': {'X': 'y'}}
  process = worker.Worker(spec, worker.choose_cores(1))
  assert process.facts['build_seconds'] > 0
  assert process.facts['cores'] == 1
  assert process.facts['variables'] == ['1', 'y']
  assert not process.facts['jax']  # it chose cores before any import
  assert process.run(5) > 0
  size, owner = process.peak()
  assert size > 1e6 and owner == 'process'
  with pytest.raises(worker.WorkerError, match=r'^RuntimeError: seven$'):
    process.run(7)
  process.close()
  assert os.sched_getaffinity(0) == ours
  assert 'noise' not in capfd.readouterr().out


def test_a_worker_imports_another_checkout(spec, tmp_path):
  package = tmp_path / 'other' / 'gswinrmt_jax'
  package.mkdir(parents=True)
  (package / 'errors.py').write_text('class UserError(Exception): pass')
  (package / '__init__.py').write_text('import os; os.environ["X"] = "other"')
  spec = {**spec, 'checkout': str(package.parent)}
  process = worker.Worker(spec, None)
  assert process.facts['variables'][1] == 'other'
  process.close()


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


def test_the_device_s_peak_counts_where_there_is_one():
  program = worker.Program(lambda calls: None, {}, lambda: 123)
  assert worker.peak(program) == (123, 'device')
