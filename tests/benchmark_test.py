"""The command: what it asks for, prints and writes."""

import json
import os
import signal
import time

import pytest

from gswinrmt_jax.benchmark import compiled, measure, record, report, suite
from gswinrmt_jax.commands import main
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import factory

TEXT = """
%twice (p: f32[500]) -> f32[500] {
  %p = f32[500]{0} parameter(0)
  ROOT %a = f32[500]{0} add(%p, %p)
}

ENTRY %main (x: f32[500]) -> f32[500] {
  %x = f32[500]{0} parameter(0)
  ROOT %f = f32[500]{0} fusion(%x), kind=kLoop, calls=%twice
}
"""


@pytest.fixture
def asked(monkeypatch):
  """Compiles nothing, and keeps what was asked for."""
  calls = []

  def compile_step(config, **arguments):
    calls.append((config, arguments))
    model = factory.create_model(
        config.model.name, num_classes=arguments['num_classes']
    )
    return compiled.Compiled(model, TEXT, temporaries=3_000_000, arguments=7)

  monkeypatch.setattr(compiled, 'compile_step', compile_step)
  return calls


def test_it_prints_and_writes_the_counts(asked, capsys, tmp_path):
  path = tmp_path / 'counts.json'
  command = ['benchmark', '--compiled-for=h200', '--model=rmt_compact']
  command += ['--batch=4', '--image-size=64', f'--json={path}']
  assert main.main(command) == 0
  ((config, arguments),) = asked
  assert (config.model.name, config.batch_size) == ('rmt_compact', 4)
  assert arguments == {
      'image_size': 64,
      'num_classes': 10,
      'augmented': False,
      'target': 'h200',
  }
  lines = capsys.readouterr().out.splitlines()
  assert lines[1].split() == ['kernels', '1', '(loop', '1)']
  assert lines[-1].split() == ['GB', 'temporaries', '0.003']
  found = json.loads(path.read_text())
  assert (found['bytes_read'], found['bytes_written']) == (2000, 2000)
  assert found['bytes_over_ideal'] == round(4000 / found['ideal_bytes'], 3)
  assert found['versions']['jax']


def test_no_ratio_where_no_ideal_was_derived(asked, capsys):
  command = ['benchmark', '--compiled-for=h200', '--model=rmt_swin_t']
  assert main.main(command) == 0
  assert 'ideal' not in capsys.readouterr().out


def test_mistakes_are_one_line(monkeypatch, capsys):
  def refuse():
    raise UserError('no plugin')

  monkeypatch.setattr(compiled, 'check_installed', refuse)
  for options, said in ((['--batch=0'], '--batch'), ([], 'no plugin')):
    assert main.main(['benchmark', '--compiled-for=h200', *options]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count('\n') == 1


def test_the_table_has_collectives_where_there_are_some(asked):
  from gswinrmt_jax import recipes

  found = report.count_step(
      recipes.cifar10('rmt_compact'),
      image_size=32,
      num_classes=10,
      augmented=True,
      target='h200',
  )
  assert 'collectives' not in report.table(found)
  found['collectives'] = {'all-reduce': 2}
  assert "{'all-reduce': 2}" in report.table(found)
  assert 'augmented' in report.table(found)


def test_sigterm_ends_it_as_ctrl_c_does(monkeypatch, capsys):
  """The folders and processes of what is measured have an end of their own."""
  ended = []

  class Bench:

    def __init__(self, *args):
      self.facts = {}

    def close(self):
      ended.append(True)

  def models(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

  before = signal.getsignal(signal.SIGTERM)
  monkeypatch.setattr(measure, 'Bench', Bench)
  monkeypatch.setattr(record, 'machine', lambda *args: {'device': 'none'})
  monkeypatch.setattr(suite, 'models', models)
  assert main.main(['benchmark', '--model=rmt_compact']) == 143
  assert 'stopped by SIGTERM, nothing was written' in capsys.readouterr().err
  assert ended and signal.getsignal(signal.SIGTERM) is before
