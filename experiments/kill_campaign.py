"""Kills runs, resumes them, and compares them with an uninterrupted run.

    nice python experiments/kill_campaign.py --out=results/kill_campaign.json

--run=smoke takes a larger model on the digits. --signal=SIGTERM sends another
signal: from the first logged step to the summary, the process must then end
with the exit status of that signal.

Each round starts training in a new folder, kills it, resumes it to the end, and
compares everything: the checksum of each array of the state (parameters,
statistics, optimiser, average), the metrics log and the summary without their
times, and the names of all files. The moment of the kill is

  uniform     after a random fraction of the wall time of the uninterrupted run
  write       as soon as an unfinished checkpoint is seen, in or after a random
              epoch
  evaluation  as soon as the last interval of an epoch has been logged, in or
              after a random epoch

The part that was hit is read from the disk after the process has died. It is a
checkpoint write if there is an unfinished checkpoint, and an evaluation if the
log ends with an epoch's last interval, without the epoch. It may be both.

Runs are processes of `tests/tiny_runs.py`, which do what `gswinrmt train` does.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import random
import signal
import sys
import tempfile
import time
from typing import Any, NamedTuple

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests'))
import tiny_runs

_TIMES = (*tiny_runs.TIMES, 'seconds_per_epoch')
_SIGNALS = ('SIGKILL', 'SIGTERM', 'SIGINT')
_EPOCHS = 4
_SMOKE = (
    f'--config.num_epochs={_EPOCHS}',
    '--config.checkpoint_every_steps=9',
    '--config.ema_decay=0.9',
    '--config.model.widths=(8,16)',
    '--config.model.depths=(1,1)',
    '--config.model.num_heads=(1,1)',
    '--config.model.mlp_ratios=(2.0,2.0)',
    '--config.model.layer_scale=(0.01,0.01)',
    '--config.model.decay_ranges=(4.0,4.0)',
    '--config.model.projection=32',
)


class Kind(NamedTuple):
  """A kind of run.

  Attributes:
    name: Name for the log.
    ends: The last step of each epoch.
    before: Code that runs before training, see `tiny_runs`.
    changes: Fields of the tests' recipe that differ.
  """

  name: str
  ends: tuple[int, ...]
  before: str
  changes: dict[str, Any]


_KINDS = {
    'tiny': Kind(
        'the tiny model of tests/',
        (6, 12, 18, 25),
        # A kill may come while curves are drawn.
        'import tiny_parts\n'
        'from gswinrmt_jax.runs import plots\n'
        "patch.setattr(plots, 'draw_curves', tiny_parts.DRAW_CURVES)",
        {'num_epochs': _EPOCHS, 'checkpoint_every_steps': 4, 'ema_decay': 0.9},
    ),
    'smoke': Kind(
        ' '.join(['gswinrmt train --config=digits_retention:smoke', *_SMOKE]),
        (20, 40, 60, 81),
        'import tiny_parts\n'
        'from gswinrmt_jax.commands import recipe_files\n'
        'patch.undo()\n'
        'patch.setattr(tiny_parts, "recipe", lambda: recipe_files.load('
        f'"digits_retention:smoke", {_SMOKE}))',
        {},
    ),
}


class Campaign(NamedTuple):
  """What all rounds share.

  Attributes:
    kind: The kind of run.
    number: The signal that is sent.
    launcher: Starts the runs.
  """

  kind: Kind
  number: signal.Signals
  launcher: tiny_runs.Launcher

  def start(self, folder: pathlib.Path) -> tiny_runs.Run:
    """Starts or resumes a run."""
    return self.launcher.start(folder, self.kind.before, **self.kind.changes)

  def finish(self, folder: pathlib.Path) -> float:
    """Runs to the end and returns the seconds it took."""
    begun, run = time.monotonic(), self.start(folder)
    if run.wait():
      raise RuntimeError(run.said())
    return time.monotonic() - begun

  def kill(self, run: tiny_runs.Run, folder: pathlib.Path) -> bool:
    """Sends the signal; returns whether it ended the process.

    Raises:
      RuntimeError: If the exit status is not one of those expected.
    """
    # Without the run's signal handler, the signal itself ends the process.
    number, said = self.number, run.said()
    os.kill(run.pid, number)  # which may have ended
    status = run.wait()
    begun = metrics_log.read_metrics(folder)
    over = (folder / 'summary.json').exists()
    by_itself = number == signal.SIGKILL or not begun or over
    expected = {0, -number} if by_itself else {0}
    if number != signal.SIGKILL:
      expected.add(128 + number)
    if status not in expected:
      raise RuntimeError(f'status {status} by {number.name}: {said}')
    return status != 0

  def outcome(self, folder: pathlib.Path) -> dict[str, Any]:
    """Returns everything that must be equal in every run.

    A run that ends in order also logs the interval before its end, so intervals
    are compared only after SIGKILL.
    """
    entries = tiny_runs.figures(folder)
    summary = json.loads((folder / 'summary.json').read_text())
    checkpoints = folder / 'checkpoints'
    return {
        'checksums': tiny_runs.checksums(folder, self.kind.ends[-1]),
        'metrics': [
            entry
            for entry in entries
            if self.number == signal.SIGKILL or entry['kind'] == 'epoch'
        ],
        'epochs': [e['step'] for e in entries if e['kind'] == 'epoch'],
        'summary': {
            name: value for name, value in summary.items() if name not in _TIMES
        },
        'files': sorted(path.name for path in folder.iterdir()),
        'checkpoints': sorted(path.name for path in checkpoints.iterdir()),
    }

  def play(
      self, moment: str, folder: pathlib.Path, seconds: float, seed: str
  ) -> dict[str, Any]:
    """Starts, kills and finishes a run; returns the round, not its verdict."""
    draw = random.Random(seed)
    begun, run = time.monotonic(), self.start(folder)
    if moment == 'uniform':
      time.sleep(draw.uniform(0, seconds))
    else:
      self._wait_for(moment, run, 10 * seconds, draw)
    sent = time.monotonic()
    killed = self.kill(run, folder)
    ended = time.monotonic()
    found = state_on_disk(self.kind, folder)
    return {
        'round': folder.name,
        'seed': seed,
        'moment': moment,
        'killed': killed,  # else it had ended before
        'killed_after_seconds': round(sent - begun, 3),
        'ended_after_seconds': round(ended - begun, 3),
        **found,
        'resumed_for_seconds': round(self.finish(folder), 3),
    }

  def _wait_for(self, moment, run, seconds, draw):
    """Waits for the moment 'write' or 'evaluation', or for the summary."""
    kind, folder = self.kind, run.folder
    epoch, deadline = draw.randrange(_EPOCHS), time.monotonic() + seconds
    begins, ends = (0, *kind.ends)[epoch], kind.ends[epoch]
    while not (folder / 'summary.json').exists():
      if time.monotonic() > deadline:
        raise RuntimeError(f'no {moment} and no end in time: {run.said()}')
      if moment == 'write':
        # '.18.0a1b2c3d.part' will become checkpoint 18.
        names = [name.split('.') for name in unfinished(folder)]
        if any(name[-1] == 'part' and int(name[1]) > begins for name in names):
          return
      else:
        found = state_on_disk(kind, folder)
        late = found['last_step_logged'] >= ends
        if late and 'evaluation' in found['where']:
          return
      time.sleep(0.001)


def unfinished(folder: pathlib.Path) -> list[str]:
  """Returns the checkpoints that are partly written or partly removed."""
  directory = folder / 'checkpoints'
  names = [p.name for p in directory.iterdir()] if directory.exists() else []
  return sorted(name for name in names if not name.isdecimal())


def state_on_disk(kind: Kind, folder: pathlib.Path) -> dict[str, Any]:
  """Returns where a process was when it was killed, and what it left."""
  entries = metrics_log.read_metrics(folder)
  left = unfinished(folder)
  last = entries[-1] if entries else {'kind': 'none', 'step': 0}
  where = []
  if any('.part' in name for name in left):
    where.append('checkpoint write')
  if last['kind'] == 'train' and last['step'] in kind.ends:
    where.append('evaluation')
  if not where:
    ended = last['step'] == kind.ends[-1]
    where = ['start' if not entries else 'end' if ended else 'training']
  return {'where': where, 'last_step_logged': last['step'], 'unfinished': left}


def main() -> None:
  """Plays all rounds and writes the log after each."""
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--uniform', type=int, default=30)
  parser.add_argument('--write', type=int, default=5)
  parser.add_argument('--evaluation', type=int, default=3)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--signal', choices=_SIGNALS, default='SIGKILL')
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--run', choices=_KINDS, default='tiny')
  args = parser.parse_args()
  try:
    files.check_can_write(args.out)
  except UserError as error:
    parser.error(str(error))
  moments = [
      moment
      for moment in ('uniform', 'write', 'evaluation')
      for _ in range(getattr(args, moment))
  ]
  if not moments:
    parser.error('--uniform, --write and --evaluation are 0: no rounds')
  random.Random(args.seed).shuffle(moments)
  with tempfile.TemporaryDirectory() as place:
    place = pathlib.Path(place)
    with tiny_runs.Launcher(place) as launcher:
      kind, number = _KINDS[args.run], signal.Signals[args.signal]
      _play_all(Campaign(kind, number, launcher), place, moments, args)


def _play_all(campaign, place, moments, args):
  campaign.finish(place / 'compiling')  # Later starts reuse its programs.
  seconds = campaign.finish(place / 'unbroken')
  expected = campaign.outcome(place / 'unbroken')
  environment = (place / 'unbroken' / 'environment.json').read_text()
  report = {
      'run': campaign.kind.name,
      'signal': campaign.number.name,
      'seed': args.seed,
      'python': platform.python_version(),
      'versions': json.loads(environment)[0]['versions'],
      'unbroken_seconds': round(seconds, 3),
      'compared': {
          'arrays': len(expected['checksums']),
          'log_entries': len(expected['metrics']),
          'epochs': expected['epochs'],
          'files': expected['files'],
          'checkpoints': expected['checkpoints'],
      },
      'rounds': [],
  }
  for count, moment in enumerate(moments, 1):
    folder = place / f'round_{count}'
    row = campaign.play(moment, folder, seconds, f'{args.seed}/{count}')
    found = campaign.outcome(folder)
    row['differing'] = [
        name for name in expected if found[name] != expected[name]
    ]
    report['rounds'].append(row)
    report['totals'] = _totals(report['rounds'])
    print(json.dumps(row), flush=True)
    files.write_text(args.out, json.dumps(report, indent=1) + '\n')
  print(json.dumps(report['totals']))
  if different := [row for row in report['rounds'] if row['differing']]:
    sys.exit(f'{len(different)} of {len(moments)} resumed runs differ')


def _totals(rounds):
  killed = [row for row in rounds if row['killed']]
  hit = collections.Counter(w for row in killed for w in row['where'])
  return {
      'rounds': len(rounds),
      'killed': len(killed),
      'uniform': sum(row['moment'] == 'uniform' for row in killed),
      'where': dict(sorted(hit.items())),
      'equal': sum(not row['differing'] for row in rounds),
  }


if __name__ == '__main__':
  main()
