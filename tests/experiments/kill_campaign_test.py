"""Checks the recorded kill campaigns, and runs a short one."""

import json
import os
import pathlib
import subprocess
import sys
import types
from unittest import mock

import kill_campaign
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def _check(report):
  for row in report['rounds']:
    assert row['differing'] == [], row
    writing = [name for name in row['unfinished'] if '.part' in name]
    assert bool(writing) == ('checkpoint write' in row['where']), row
  assert report['totals']['equal'] == len(report['rounds'])


def test_the_campaign_of_record():
  report = json.loads((ROOT / 'results' / 'kill_campaign.json').read_text())
  _check(report)
  # The whole state was compared, and each epoch is logged once.
  assert report['compared']['arrays'] == 35
  assert report['compared']['epochs'] == [6, 12, 18, 25]
  assert report['compared']['log_entries'] == 16  # intervals plus epochs
  killed = [row for row in report['rounds'] if row['killed']]
  uniform = [row for row in killed if row['moment'] == 'uniform']
  assert len(uniform) >= 30 and len({row['seed'] for row in killed}) >= 30
  times = [row['killed_after_seconds'] for row in uniform]
  longest = report['unbroken_seconds']
  assert min(times) < longest / 4 and max(times) > longest * 3 / 4
  where = [where for row in killed for where in row['where']]
  assert where.count('checkpoint write') >= 5
  assert where.count('evaluation') >= 3


def test_the_campaign_on_the_digits():
  path = ROOT / 'results' / 'kill_campaign_digits.json'
  report = json.loads(path.read_text())
  _check(report)
  assert report['totals']['killed'] == 9 and len(report['rounds']) == 11
  assert report['compared']['epochs'] == [20, 40, 60, 81]
  assert report['compared']['arrays'] > 100


@pytest.mark.parametrize(('name', 'killed'), [('sigterm', 38), ('sigint', 33)])
def test_the_campaigns_of_signals(name, killed):
  """Each run ended with its signal's status, or had already finished."""
  path = ROOT / 'results' / f'kill_campaign_{name}.json'
  report = json.loads(path.read_text())
  _check(report)
  assert report['signal'].lower() == name
  assert report['totals']['killed'] == killed
  # No file was left half written, and each run ended quickly.
  assert not any(row['unfinished'] for row in report['rounds'])
  for row in report['rounds']:
    # A run that ended with status 0 did not continue after the signal.
    most = 2 if row['killed'] else 0.05
    # A compilation in progress must finish first.
    if row['where'] != ['start']:
      assert row['ended_after_seconds'] - row['killed_after_seconds'] < most


@pytest.mark.slow
@pytest.mark.parametrize('number', ['SIGKILL', 'SIGTERM'])
def test_a_short_campaign(number, tmp_path):
  out = tmp_path / 'campaign.json'
  command = [sys.executable, str(ROOT / 'experiments' / 'kill_campaign.py')]
  rounds = ['--uniform=1', '--write=1', '--evaluation=1']
  subprocess.run(
      [*command, *rounds, f'--signal={number}', f'--out={out}'],
      env={**os.environ, 'PYTHONPATH': str(ROOT)},
      check=True,
  )
  report = json.loads(out.read_text())
  _check(report)
  # On a busy machine, a run may end before a moment drawn from its usual time.
  for row in report['rounds']:
    assert row['killed'] or row['moment'] == 'uniform'
  writing = report['totals']['where'].get('checkpoint write')
  assert bool(writing) == (number == 'SIGKILL')


def test_a_resumed_run_that_differs_is_a_failure(tmp_path):
  """The report is written all the same."""
  campaign = mock.Mock()
  campaign.kind.name, campaign.number.name = 'tiny', 'SIGKILL'

  def finish(folder):
    folder.mkdir()
    (folder / 'environment.json').write_text('[{"versions": {}}]')
    return 1.0

  campaign.finish.side_effect = finish
  expected = dict.fromkeys(
      ('checksums', 'metrics', 'epochs', 'files', 'checkpoints'), ()
  )
  found = expected | {'metrics': (1,)}
  campaign.outcome.side_effect = [expected, expected, found]
  row = {'killed': True, 'where': ['training'], 'moment': 'uniform'}
  campaign.play.side_effect = [{**row}, {**row}]
  args = types.SimpleNamespace(seed=0, out=tmp_path / 'report.json')
  with pytest.raises(SystemExit, match='1 of 2 resumed runs differ'):
    kill_campaign._play_all(campaign, tmp_path, ['uniform'] * 2, args)
  report = json.loads(args.out.read_text())
  assert [row['differing'] for row in report['rounds']] == [[], ['metrics']]
