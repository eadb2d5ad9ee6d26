"""End to end on the digits: train, kill, resume, evaluate, as a user would."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from gswinrmt_jax.runs import metrics_log

ROOT = pathlib.Path(__file__).parent.parent
TIMES = ('seconds', 'images_per_second', 'data_wait')


@pytest.fixture(scope='module')
def environment(tmp_path_factory):
  """Later processes take over what the first has compiled."""
  return {
      **os.environ,
      'JAX_COMPILATION_CACHE_DIR': str(tmp_path_factory.mktemp('compiled')),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }


def _command(folder, *overrides):
  return [
      sys.executable,
      str(ROOT / 'train.py'),
      '--config=digits_retention:smoke',
      f'--workdir={folder}',
      '--config.num_epochs=500',
      *overrides,
  ]


def _run(command, environment):
  done = subprocess.run(
      command,
      cwd=ROOT,
      env=environment,
      capture_output=True,
      text=True,
      check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def _kill_in_an_epoch(folder, environment):
  """Starts a run and kills it after its second checkpoint."""
  with (folder.parent / 'output').open('w') as output:
    process = subprocess.Popen(
        _command(folder), cwd=ROOT, env=environment, stdout=output
    )
    try:
      deadline = time.monotonic() + 300
      while not (folder / 'checkpoints' / '40').exists():
        assert process.poll() is None, (folder.parent / 'output').read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    finally:  # Else 500 epochs would go on alone.
      process.send_signal(signal.SIGKILL)
      assert process.wait() == -signal.SIGKILL


def _checksums(folder, step):
  path = folder / 'checkpoints' / str(step) / 'meta' / 'metadata'
  return json.loads(path.read_text())['crc32']


def _figures(folder):
  return [
      {name: value for name, value in entry.items() if name not in TIMES}
      for entry in metrics_log.read_metrics(folder)
  ]


def test_killed_resumed_and_evaluated(tmp_path, environment):
  killed, unbroken = tmp_path / 'killed', tmp_path / 'unbroken'
  _kill_in_an_epoch(killed, environment)
  steps = [
      int(path.name)
      for path in (killed / 'checkpoints').iterdir()
      if path.name.isdecimal()
  ]
  # Each epoch has 20 steps or 21: 1,297 images in batches of 64.
  epoch = max(steps) // 20 + 1
  stop = f'--config.stop_after_epochs={epoch}'
  said = _run(_command(killed, stop), environment)
  assert f'Going on from the checkpoint of step {max(steps)}.' in said
  _run(_command(unbroken, stop), environment)

  last = epoch * 1297 // 64
  assert _checksums(killed, last) == _checksums(unbroken, last)
  assert _figures(killed) == _figures(unbroken)

  # The command of an installed package.
  evaluate = [sys.executable, '-m', 'gswinrmt_jax.commands.main', 'evaluate']
  said = _run(
      [*evaluate, str(killed), '--step=latest', '--split=val'], environment
  )
  assert 'images                             200' in said
  report = json.loads((killed / f'evaluation_val_{last}.json').read_text())
  summary = json.loads((unbroken / 'summary.json').read_text())
  assert report['accuracy'] == summary['last']['val_accuracy']
  assert report['count'] == 200
  assert 'test_accuracy' not in summary['last']  # stopped: not tested yet
