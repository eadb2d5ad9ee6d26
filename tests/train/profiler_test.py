"""Tests which steps of a run are traced, and that the trace is written."""

import gzip
import json

import pytest
import tiny_parts

from gswinrmt_jax.distributed import processes
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.terminal import Terminal
from gswinrmt_jax.train import profiler

pytestmark = pytest.mark.usefixtures(
    'compiled_once', 'usual_kernels', 'tiny_installed'
)


def test_the_steps_to_trace_are_read():
  assert list(profiler.parse('10:13', 25)) == [10, 11, 12, 13]
  assert list(profiler.parse('25:25', 25)) == [25]
  assert not profiler.parse('', 25)


@pytest.mark.parametrize('text', ['0:3', '3:2', '24:26'])
def test_other_steps_are_refused(text):
  with pytest.raises(UserError, match=rf"'{text}': must be .* 1 to 25 of"):
    profiler.parse(text, 25)


def test_a_run_writes_its_trace(tmp_path):
  _, said = tiny_parts.train(
      tmp_path / 'run', stop_after_epochs=1, profile_steps='2:5'
  )
  folder = tmp_path / 'run' / 'profile'
  assert f'Trace in {folder}.' in said
  (path,) = folder.rglob('perfetto_trace.json.gz')
  with gzip.open(path) as file:
    events = json.load(file)['traceEvents']
  numbers = {
      int(event['args']['step_num'])
      for event in events
      if 'step_num' in event.get('args', {})
  }
  assert numbers == {2, 3, 4, 5}
  assert list(folder.rglob('*.xplane.pb'))  # read by TensorBoard and XProf
  # Another trace may be there already.
  _, said = tiny_parts.train(
      tmp_path / 'run', stop_after_epochs=2, profile_steps='3:4'
  )
  assert 'No trace is written: steps 3 to 4' in said


def test_of_several_processes_the_first_traces(tmp_path, monkeypatch):
  monkeypatch.setattr(processes, 'is_first', lambda: False)
  profile = profiler.Profiler(range(1, 2), tmp_path / 'profile', Terminal())
  with profile.step(1):
    pass
  profile.close()
  assert not (tmp_path / 'profile').exists()
