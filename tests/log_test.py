"""The terminal's lines and the metrics log."""

import io
import json

import pytest

from gswinrmt_jax.training import log


class _Screen(io.StringIO):

  def isatty(self):
    return True


def test_progress_is_redrawn_on_a_terminal_and_said_elsewhere():
  screen, pipe = _Screen(), io.StringIO()
  for stream in (screen, pipe):
    terminal = log.Terminal(stream)
    terminal.progress('step 1')
    terminal.progress('step 2')
    terminal.say('done')
  assert screen.getvalue() == '\r\x1b[Kstep 1\r\x1b[Kstep 2\ndone\n'
  assert pipe.getvalue() == 'step 1\nstep 2\ndone\n'


def test_the_progress_line_never_wraps(monkeypatch):
  monkeypatch.setenv('COLUMNS', '9')
  screen = _Screen()
  log.Terminal(screen).progress('epoch 1/2 step 3')
  assert screen.getvalue() == '\r\x1b[Kepoch 1/'


def _write(folder, steps, *, start):
  metrics_log = log.MetricsLog(folder, step=start)
  for step in steps:
    metrics_log.write('train', step, {'loss': step / 4})
  metrics_log.close()
  return metrics_log.entries


def test_a_resumed_log_counts_nothing_twice(tmp_path):
  _write(tmp_path, (2, 4, 6, 8), start=0)
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"kind": "train", "st')  # killed while writing
  entries = _write(tmp_path, (6, 7), start=4)
  assert [entry['step'] for entry in entries] == [2, 4, 6, 7]
  assert log.read_metrics(tmp_path) == entries
  assert entries[-1] == {'kind': 'train', 'step': 7, 'loss': 1.75}
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line) for line in lines] == entries
  assert list((tmp_path / 'tensorboard').glob('events.*'))


@pytest.mark.parametrize(
    'line',
    [
        '7',
        '{}',
        '{"step": 7}',
        '{"kind": "train", "step": "7"}',
        '{"kind": "epoch", "step": 7}',
        '[' * 99_999,
        '\xff',
    ],
)
def test_lines_that_are_no_entries_are_passed_over(line, tmp_path):
  entries = _write(tmp_path, (2, 4), start=0)
  with (tmp_path / 'metrics.jsonl').open('ab') as file:
    file.write(line.encode('latin-1') + b'\n')
  assert log.read_metrics(tmp_path) == entries
  assert _write(tmp_path, (9,), start=8)[:2] == entries


def test_a_new_run_starts_an_empty_log(tmp_path):
  assert log.read_metrics(tmp_path) == []
  _write(tmp_path, (2,), start=0)
  assert _write(tmp_path, (), start=0) == []


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [
        (0.04, '0.0s'),
        (9.949, '9.9s'),
        (9.951, '10s'),
        (44.6, '45s'),
        (59.7, '1m00s'),
        (185, '3m05s'),
        (7620, '2h07m'),
    ],
)
def test_duration(seconds, text):
  assert log.duration(seconds) == text
