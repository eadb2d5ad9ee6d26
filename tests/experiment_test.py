"""`gswinrmt experiment`: its arguments and its exit status."""

import re

import pytest

from gswinrmt_jax.commands import main
from gswinrmt_jax.experiments import run, sets


def test_help_lists_every_set(capsys):
  with pytest.raises(SystemExit):
    main.main(['experiment', '--help'])
  text = capsys.readouterr().out
  listed = re.findall(r'^  ([a-z][\w-]+)  ', text, re.MULTILINE)
  assert [name for name in listed if name != 'NAME'] == list(sets.SETS)


def test_overrides_and_seeds_reach_the_runs(monkeypatch, capsys, tmp_path):
  calls = []
  monkeypatch.setattr(
      run, 'run', lambda jobs, program, say: calls.append(jobs) or jobs[:1]
  )
  argv = ['experiment', 'table5', '--seeds=2', '--config.batch_size', '64']
  assert main.main([*argv, f'--out={tmp_path}']) == 1
  (jobs,) = calls
  assert len(jobs) == 6 and {job.config.batch_size for job in jobs} == {64}
  printed = capsys.readouterr()
  assert printed.err == f'failed: {tmp_path}/table5/rmt_s0\n'
  assert '0 of 6 runs are complete.' in printed.out


def test_status_runs_nothing(capsys, tmp_path):
  argv = ['experiment', 'smoke', '--status', '--seeds=1', f'--out={tmp_path}']
  assert main.main(argv) == 0
  assert 'retention_no_gate_s0' in capsys.readouterr().out
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('argv', 'said'),
    [
        (['tabel5'], "no experiment 'tabel5'"),
        (['table5', '--seeds=0'], '--seeds must be at least 1'),
        (['table5', '--sedes=1'], 'unrecognized arguments: --sedes=1'),
        (['table5', '--config.sede=1'], 'no config field sede'),
    ],
)
def test_mistakes_are_one_line(argv, said, capsys):
  assert main.main(['experiment', *argv]) == 2
  error = capsys.readouterr().err
  assert said in error and error.count('\n') == 1
