"""Traces of a run, which viewers open."""

import gzip
import io
import json
import pathlib

import pytest
import tiny_parts

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.train import profiler, schedule, train_loop


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
  tiny_parts.install(monkeypatch)


def test_steps_are_read():
  assert list(profiler.parse('10:13', 25)) == [10, 11, 12, 13]
  assert list(profiler.parse('25:25', 25)) == [25]
  assert not profiler.parse('', 25)


@pytest.mark.parametrize(
    'text', ['0:3', '3:2', '24:26', '5', '5:', 'a:b', '-1:2', '1:2:3', '1-2']
)
def test_others_are_refused(text):
  with pytest.raises(UserError, match=rf"'{text}': must be .* 1 to 25 of"):
    profiler.parse(text, 25)


@pytest.mark.parametrize(('start', 'most'), [(0, 100), (3, 2), (9, 1)])
def test_dispatches_hold_steps_of_the_trace_alone(start, most):
  course = schedule.Plan(
      num_examples=25,
      batch_size=4,
      num_epochs=4,
      stop_after_epochs=4,
      eval_every_epochs=1,
      log_every_steps=50,
      profiled=range(9, 12),
  )
  pieces = list(course.dispatches(start, most))
  assert [step for piece in pieces for step in piece] == [*range(start + 1, 26)]
  for piece in pieces:
    assert len({step in course.profiled for step in piece}) == 1


def _events(folder: pathlib.Path):
  (path,) = folder.rglob('perfetto_trace.json.gz')
  with gzip.open(path) as file:
    return json.load(file)['traceEvents']


def test_a_run_writes_its_trace(tmp_path):
  """Of two dispatches: steps 5, where metrics are read, and 6 to 8."""
  stream = io.StringIO()
  config = tiny_parts.recipe(
      num_epochs=2, log_every_steps=5, steps_per_dispatch=4, profile_steps='5:8'
  )
  # Epoch 1 ends with step 6.
  train_loop.train(config, tmp_path / 'run', metrics_log.Terminal(stream))
  folder = tmp_path / 'run' / 'profile'
  assert f'Trace in {folder}.' in stream.getvalue()
  numbers = {
      int(event['args']['step_num'])
      for event in _events(folder)
      if 'step_num' in event.get('args', {})
  }
  assert numbers == {5, 6, 8}
  assert list(folder.rglob('*.xplane.pb'))  # for TensorBoard and XProf


def test_no_trace_without_being_asked(tmp_path, monkeypatch):
  monkeypatch.setattr(
      profiler.jax.profiler, 'start_trace', lambda *args, **how: 1 / 0
  )
  traced = profiler.Profile(range(0), tmp_path)
  traced.begin(range(1, 3))
  assert not traced.end(2, None)
  traced.close()
