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

A run does what `gswinrmt train` does, in a process forked from one that has
done the slow imports.
"""

import argparse
import collections
from collections.abc import Callable
import dataclasses
import json
import os
import pathlib
import platform
import random
import signal
import sys
import tempfile
import time
from typing import Any

import grain  # noqa: F401
import jax
import orbax.checkpoint  # noqa: F401

from gswinrmt_jax import files
from gswinrmt_jax.commands import guard, recipe_files
from gswinrmt_jax.runs import metrics_log, plots
from gswinrmt_jax.train import train_loop

_TIMES = ('seconds', 'images_per_second', 'data_wait', 'seconds_per_epoch')
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


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of run.

  Attributes:
    name: Name for the log.
    recipe: Returns the recipe, in the process of the run.
    ends: The last step of each epoch.
  """

  name: str
  recipe: Callable[[], Any]
  ends: tuple[int, ...]


def _smoke():
  return recipe_files.load('digits_retention:smoke', list(_SMOKE))


def _tiny():
  """Returns the tests' recipe: a model of 170 parameters, 25 images."""
  sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / 'tests'))
  import pytest
  import tiny_parts

  draw = plots.draw_curves
  tiny_parts.install(pytest.MonkeyPatch())
  plots.draw_curves = draw  # A kill may come while it draws.
  return tiny_parts.recipe(
      num_epochs=_EPOCHS, checkpoint_every_steps=4, ema_decay=0.9
  )


_KINDS = {
    'tiny': Kind('the tiny model of tests/', _tiny, (6, 12, 18, 25)),
    'smoke': Kind(
        ' '.join(['gswinrmt train --config=digits_retention:smoke', *_SMOKE]),
        _smoke,
        (20, 40, 60, 81),
    ),
}


class Run:
  """A training run in a process of its own."""

  def __init__(self, kind: Kind, folder: pathlib.Path):
    """Starts or resumes the run; its output goes to `FOLDER.said`."""
    self._kind, self._folder = kind, folder
    self.status = None
    self.begun = time.monotonic()
    self._pid = os.fork()
    if not self._pid:
      self._be()

  def _be(self):
    """Trains in the forked process; does not return."""
    status = 1
    try:
      how = os.O_CREAT | os.O_APPEND | os.O_WRONLY
      said = os.open(self._folder.with_suffix('.said'), how)
      os.dup2(said, 1)
      os.dup2(said, 2)
      status = guard.guarded(
          lambda: train_loop.train(self._kind.recipe(), self._folder) and None
      )
    finally:
      os._exit(status)

  def ended(self) -> bool:
    """Returns whether the process has ended."""
    if self.status is None:
      pid, status = os.waitpid(self._pid, os.WNOHANG)
      self.status = os.waitstatus_to_exitcode(status) if pid else None
    return self.status is not None

  def wait(self, seconds: float = float('inf')) -> None:
    """Waits for the end, at most `seconds` after the start."""
    while not self.ended() and time.monotonic() - self.begun < seconds:
      time.sleep(0.001)

  def kill(self, number: signal.Signals) -> bool:
    """Sends a signal; returns whether it ended the process.

    Raises:
      RuntimeError: If the exit status is not one of those expected.
    """
    if not self.ended():
      os.kill(self._pid, number)
      self.wait()
    # Without the run's signal handler, the signal itself ends the process.
    begun = metrics_log.read_metrics(self._folder)
    over = (self._folder / 'summary.json').exists()
    by_itself = number == signal.SIGKILL or not begun or over
    expected = {0, -number} if by_itself else {0}
    if number != signal.SIGKILL:
      expected.add(128 + number)
    if self.status not in expected:
      said = self._folder.with_suffix('.said').read_text()
      raise RuntimeError(f'status {self.status} by {number.name}: {said}')
    return self.status != 0


def finish(kind: Kind, folder: pathlib.Path) -> float:
  """Runs to the end and returns the seconds it took."""
  run = Run(kind, folder)
  run.wait()
  if run.status:
    raise RuntimeError(folder.with_suffix('.said').read_text())
  return time.monotonic() - run.begun


def outcome(
    kind: Kind, folder: pathlib.Path, number: signal.Signals
) -> dict[str, Any]:
  """Returns everything that must be equal in every run.

  A run that ends in order also logs the interval before its end, so intervals
  are compared only after SIGKILL.
  """
  meta = folder / 'checkpoints' / str(kind.ends[-1]) / 'meta' / 'metadata'
  entries = metrics_log.read_metrics(folder)
  summary = json.loads((folder / 'summary.json').read_text())
  return {
      'checksums': json.loads(meta.read_text())['crc32'],
      'metrics': [
          _without_times(entry)
          for entry in entries
          if number == signal.SIGKILL or entry['kind'] == 'epoch'
      ],
      'epochs': [e['step'] for e in entries if e['kind'] == 'epoch'],
      'summary': _without_times(summary),
      'files': sorted(path.name for path in folder.iterdir()),
      'checkpoints': sorted(p.name for p in (folder / 'checkpoints').iterdir()),
  }


def _without_times(entry):
  return {name: value for name, value in entry.items() if name not in _TIMES}


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


def _until_seen(kind, moment, folder, run, draw):
  """Waits for the moment 'write' or 'evaluation' of a round."""
  epoch = draw.randrange(_EPOCHS)
  begins, ends = (0, *kind.ends)[epoch], kind.ends[epoch]
  while not run.ended():
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


def play(
    kind: Kind,
    moment: str,
    folder: pathlib.Path,
    seconds: float,
    seed: str,
    number: signal.Signals,
) -> dict[str, Any]:
  """Starts, kills and finishes a run; returns the round without its verdict."""
  draw = random.Random(seed)
  run = Run(kind, folder)
  if moment == 'uniform':
    run.wait(draw.uniform(0, seconds))
  else:
    _until_seen(kind, moment, folder, run, draw)
  sent = time.monotonic()
  killed = run.kill(number)
  ended = time.monotonic()
  found = state_on_disk(kind, folder)
  return {
      'round': folder.name,
      'seed': seed,
      'moment': moment,
      'killed': killed,  # else it had ended before
      'killed_after_seconds': round(sent - run.begun, 3),
      'ended_after_seconds': round(ended - run.begun, 3),
      **found,
      'resumed_for_seconds': round(finish(kind, folder), 3),
  }


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
  moments = [
      moment
      for moment in ('uniform', 'write', 'evaluation')
      for _ in range(getattr(args, moment))
  ]
  random.Random(args.seed).shuffle(moments)
  with tempfile.TemporaryDirectory() as place:
    _campaign(pathlib.Path(place), moments, args)


def _campaign(place, moments, args):
  kind, seed, number = _KINDS[args.run], args.seed, signal.Signals[args.signal]
  # Later starts reuse what the first compiled. No device is initialised here.
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_compilation_cache_dir', str(place / 'compiled'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  finish(kind, place / 'compiling')
  seconds = finish(kind, place / 'unbroken')
  expected = outcome(kind, place / 'unbroken', number)
  environment = (place / 'unbroken' / 'environment.json').read_text()
  report = {
      'run': kind.name,
      'signal': number.name,
      'seed': seed,
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
    row = play(kind, moment, folder, seconds, f'{seed}/{count}', number)
    found = outcome(kind, folder, number)
    row['differing'] = [
        name for name in expected if found[name] != expected[name]
    ]
    report['rounds'].append(row)
    report['totals'] = _totals(report['rounds'])
    print(json.dumps(row), flush=True)
    files.write_text(args.out, json.dumps(report, indent=1) + '\n')
  print(json.dumps(report['totals']))


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
