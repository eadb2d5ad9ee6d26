"""`gswinrmt report`: its arguments."""

import pathlib

from gswinrmt_jax.commands import main
from gswinrmt_jax.experiments import write_report


def test_folders_reach_the_report(monkeypatch, capsys):
  calls = []

  def write(paths, out):
    calls.append((paths, out))
    return out / 'report.md'

  monkeypatch.setattr(write_report, 'write', write)
  assert main.main(['report', 'a', 'b', '--out=c']) == 0
  assert calls == [([pathlib.Path('a'), pathlib.Path('b')], pathlib.Path('c'))]
  assert capsys.readouterr().out == 'c/report.md\n'


def test_mistakes_are_one_line(capsys, tmp_path):
  assert main.main(['report', str(tmp_path)]) == 2
  assert capsys.readouterr().err == (
      f'gswinrmt: there is no run in {tmp_path}\n'
  )
  assert main.main(['report']) == 2
