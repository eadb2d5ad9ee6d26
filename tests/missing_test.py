"""What a report says is missing."""

import json

import made_up_runs
import pytest

from gswinrmt_jax.experiments import gather, missing, switches, variants


@pytest.fixture
def lines(tmp_path):
  def read(*runs):
    for number, (spec, how) in enumerate(runs):
      made_up_runs.write(tmp_path / f'{number}', spec, **how)
    settings, _ = variants.group(gather.gather([tmp_path])[0])
    return [line for one in settings for line in missing.lines(one)]

  return read


def test_runs_that_are_not_there_or_not_done(lines):
  whole = [0.5] * 50
  found = lines(
      ('cifar10_rmt', {'accuracies': whole, 'test': 0.5}),
      ('cifar10_rmt', {'accuracies': whole, 'summed_up': False, 'seed': 1}),
      ('cifar10_retention', {'accuracies': [0.5]}),
  )
  start = 'cifar10, compact models: '
  assert found == [
      start + 'no run of SWAT',
      start + '`rmt`, seed 1: epoch 50 of 50, not tested [2]',
      start + '`retention`, seed 0: epoch 1 of 50 [3]',
      start + 'one seed, so no deviation and no interval: `retention`',
      start + 'latency is not measured',
  ]


def test_switches_and_what_they_are_compared_with(lines, tmp_path):
  overrides = ['--config.num_epochs=1', '--config.dtype=float32']
  how = {'accuracies': [0.5], 'test': 0.5, 'overrides': overrides}
  found = lines(('ablation:swat,window_4_no_shift', how))
  (line,) = (one for one in found if 'nothing to compare with' in one)
  assert '`swat,window_4_no_shift` has nothing to compare with [1]' in line
  (line,) = (one for one in found if 'switches of swat without a run' in one)
  # But for the base, the one that was run, and those idle at 32 pixels.
  idle = [name for name, one in switches.SWITCHES['swat'].items() if one.idle]
  assert len(idle) == 1 and f'`{idle[0]}`' not in line
  assert line.count('`') == 2 * (len(switches.SWITCHES['swat']) - 2 - len(idle))
  assert '`gate`' in line and '`window_4_no_shift`' not in line
  assert not any('switches of rmt' in one for one in found)
  assert sum('no run of' in one for one in found) == 3
  assert not any('no cost' in one for one in found)
  (tmp_path / '0' / 'latency.json').write_text('{"milliseconds": 2}')
  assert not any('latency' in one for one in lines())


def test_a_run_that_does_not_know_its_images(lines, tmp_path):
  run = ('digits_rmt', {'accuracies': [0.5]})
  assert not any('no cost' in one for one in lines(run))
  config = json.loads((tmp_path / '0' / 'config.json').read_text())
  config['data']['name'] = 'other'
  (tmp_path / '0' / 'config.json').write_text(json.dumps(config))
  (tmp_path / '0' / 'data.json').unlink()
  (line,) = (one for one in lines() if 'no cost' in one)
  assert line.endswith('image size unknown (no data.json), so no cost: `rmt`')
