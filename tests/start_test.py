"""Imports are timed in a fresh process; training until its first entry."""

import json
import os

import pytest

from gswinrmt_jax.benchmark import process, start

# In place of `gswinrmt train`: logs step 1 when it has waited, and goes on.
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
  monkeypatch.setattr(start, '_IMPORTS', {'json': 'import json'})
  return path


def test_it_times_until_the_first_step_is_logged_whole(trained):
  rows = start.measure(2, None, on_cpu=True)
  names = [row['what'] for row in rows]
  assert names == ['json', *start._STEPS]
  assert 0 < rows[0]['seconds'] < 5
  for row in rows[1:]:
    assert all(0.5 <= seconds < 20 for seconds in row['repeats'])
  assert start.table(rows).count('\n') == 4
  json.dumps(rows)


def test_the_row_says_how_it_was_compiled(trained):
  """The program fails but for the effort that it is asked for."""
  for effort in start._STEPS.values():
    asked = f'assert "--config.compile_effort={effort}" in sys.argv'
    trained.write_text(TRAINING.replace('time\n', f'time\n{asked}\n', 1))
    assert start._first_step_seconds(effort) < 20


def test_what_fails_is_told(trained, monkeypatch):
  monkeypatch.setattr(start, '_IMPORTS', {'no_such_module': 'import no_such'})
  with pytest.raises(process.ArmError, match='no_such'):
    start.measure(1, None, on_cpu=True)
  trained.write_text('')
  with pytest.raises(process.ArmError, match='no first step'):
    start._first_step_seconds('quick')


def test_the_cores_come_back(trained):
  before = os.sched_getaffinity(0)
  start.measure(1, 1, on_cpu=False)
  assert os.sched_getaffinity(0) == before


def test_the_import_of_the_package_is_within_its_bar():
  """Without JAX it is milliseconds; a second would be JAX."""
  assert start._import_seconds('import gswinrmt_jax') < 1.0
