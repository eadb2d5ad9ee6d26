"""Kills runs, has them go on, and compares them with an unbroken one.

    nice python results/kill_campaign.py --out=results/kill_campaign.json

Each round starts the training in a new folder, kills it with SIGKILL, has it go
on to the end, and compares everything: the checksum of each array of the state
(parameters, statistics, optimiser, average), the metrics log and the summary
without their times, and the names of all files. The moment is

  uniform     after a time drawn from the whole wall time of the unbroken run
  write       as soon as an unfinished checkpoint is seen, in an epoch drawn
  evaluation  as soon as the last interval of an epoch, drawn, has been logged
              and nothing is being written

Where it hit is read from what is on the disk when the process is dead: inside a
write if there is an unfinished checkpoint; inside an evaluation if the log ends
with an epoch's last interval, without the epoch, and nothing is unfinished.

A run is what `gswinrmt train` does, in a process of its own, forked from one
that has imported what takes seconds to import.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import random
import signal
import tempfile
import time

import grain  # noqa: F401
import jax
import orbax.checkpoint  # noqa: F401

from gswinrmt_jax import files
from gswinrmt_jax.commands import guard, recipe_files
from gswinrmt_jax.training import log, loop

_TIMES = ('seconds', 'images_per_second', 'data_wait', 'seconds_per_epoch')
_EPOCHS = 4
_RECORDS, _BATCH = 1297, 64  # the training digits
_ENDS = [epoch * _RECORDS // _BATCH for epoch in range(1, _EPOCHS + 1)]
_RECIPE = 'digits_retention:smoke'
_OVERRIDES = (
    f'--config.num_epochs={_EPOCHS}',
    f'--config.batch_size={_BATCH}',
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


_EVALUATES = {'where': 'evaluation', 'unfinished': []}


class Run:
  """A training in a process of its own."""

  def __init__(self, folder: pathlib.Path):
    """Begins, or goes on; what it says goes to `FOLDER.said`."""
    self._folder = folder
    self.status = None
    self.begun = time.monotonic()
    self._pid = os.fork()
    if not self._pid:
      self._be()

  def _be(self):
    """Does not return."""
    status = 1
    try:
      how = os.O_CREAT | os.O_APPEND | os.O_WRONLY
      said = os.open(self._folder.with_suffix('.said'), how)
      os.dup2(said, 1)
      os.dup2(said, 2)
      config = recipe_files.load(_RECIPE, list(_OVERRIDES))
      status = guard.guarded(lambda: loop.train(config, self._folder) and None)
    finally:
      os._exit(status)

  def ended(self) -> bool:
    """Returns whether it has ended."""
    if self.status is None:
      pid, status = os.waitpid(self._pid, os.WNOHANG)
      self.status = os.waitstatus_to_exitcode(status) if pid else None
    return self.status is not None

  def wait(self, seconds: float = float('inf')) -> None:
    """Waits for its end, so long at most."""
    while not self.ended() and time.monotonic() - self.begun < seconds:
      time.sleep(0.001)

  def kill(self) -> bool:
    """Kills it; returns whether that is how it ended."""
    if not self.ended():
      os.kill(self._pid, signal.SIGKILL)
      self.wait()
    return self.status == -signal.SIGKILL


def finish(folder: pathlib.Path) -> float:
  """Runs to the end; returns the seconds."""
  run = Run(folder)
  run.wait()
  if run.status:
    raise RuntimeError(folder.with_suffix('.said').read_text())
  return time.monotonic() - run.begun


def outcome(folder: pathlib.Path) -> dict[str, object]:
  """Returns all that is to be the same in every run."""
  meta = folder / 'checkpoints' / str(_ENDS[-1]) / 'meta' / 'metadata'
  entries = log.read_metrics(folder)
  summary = json.loads((folder / 'summary.json').read_text())
  return {
      'checksums': json.loads(meta.read_text())['crc32'],
      'metrics': [_without_times(entry) for entry in entries],
      'epochs': [e['step'] for e in entries if e['kind'] == 'epoch'],
      'summary': _without_times(summary),
      'files': sorted(path.name for path in folder.iterdir()),
      'checkpoints': sorted(p.name for p in (folder / 'checkpoints').iterdir()),
  }


def _without_times(entry):
  return {name: of for name, of in entry.items() if name not in _TIMES}


def unfinished(folder: pathlib.Path) -> list[str]:
  """Returns the checkpoints that are half written or half removed."""
  directory = folder / 'checkpoints'
  names = [p.name for p in directory.iterdir()] if directory.exists() else []
  return sorted(name for name in names if not name.isdecimal())


def state_on_disk(folder: pathlib.Path) -> dict[str, object]:
  """Returns where a process was when it was killed, and what it left."""
  entries = log.read_metrics(folder)
  left = unfinished(folder)
  writing = [name for name in left if '.part' in name]
  last = entries[-1] if entries else {'kind': 'none', 'step': 0}
  if writing:
    where = 'checkpoint write'
  elif last['kind'] == 'train' and last['step'] in _ENDS:
    where = 'evaluation'
  elif not entries:
    where = 'start'
  elif last['step'] == _ENDS[-1]:
    where = 'end'
  else:
    where = 'training'
  return {'where': where, 'last_step_logged': last['step'], 'unfinished': left}


def _until_seen(kind, folder, run, draw):
  """Waits for the moment of a round that is not uniform."""
  epoch = draw.randrange(_EPOCHS)
  begins, ends = [0, *_ENDS][epoch], _ENDS[epoch]
  while not run.ended():
    if kind == 'write':
      steps = [int(name.partition('.')[0]) for name in unfinished(folder)]
      if any(step > begins for step in steps):
        return
    elif state_on_disk(folder) == {**_EVALUATES, 'last_step_logged': ends}:
      return
    time.sleep(0.001)


def play(
    number: int, kind: str, place: pathlib.Path, seconds: float, seed: str
) -> dict[str, object]:
  """Starts, kills and finishes a run; returns the round but for the verdict."""
  draw = random.Random(seed)
  folder = place / f'round_{number}'
  run = Run(folder)
  if kind == 'uniform':
    run.wait(draw.uniform(0, seconds))
  else:
    _until_seen(kind, folder, run, draw)
  killed = run.kill()
  lived = time.monotonic() - run.begun
  found = state_on_disk(folder)
  return {
      'round': number,
      'seed': seed,
      'kind': kind,
      'killed': killed,  # else it had ended before
      'killed_after_seconds': round(lived, 3),
      **found,
      'resumed_for_seconds': round(finish(folder), 3),
  }


def main() -> None:
  """Plays all rounds and writes their log after each."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--uniform', type=int, default=30)
  parser.add_argument('--write', type=int, default=5)
  parser.add_argument('--evaluation', type=int, default=3)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--out', type=pathlib.Path, required=True)
  args = parser.parse_args()
  kinds = [
      kind
      for kind in ('uniform', 'write', 'evaluation')
      for _ in range(getattr(args, kind))
  ]
  random.Random(args.seed).shuffle(kinds)
  with tempfile.TemporaryDirectory() as place:
    _campaign(pathlib.Path(place), kinds, args.seed, args.out)


def _campaign(place, kinds, seed, out):
  # A start takes over what the first has compiled. No device is begun here.
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_compilation_cache_dir', str(place / 'compiled'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  finish(place / 'compiling')
  seconds = finish(place / 'unbroken')
  expected = outcome(place / 'unbroken')
  environment = (place / 'unbroken' / 'environment.json').read_text()
  report = {
      'command': ' '.join([f'gswinrmt train --config={_RECIPE}', *_OVERRIDES]),
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
  for number, kind in enumerate(kinds, 1):
    row = play(number, kind, place, seconds, f'{seed}/{number}')
    found = outcome(place / f'round_{number}')
    row['differing'] = [
        name for name in expected if found[name] != expected[name]
    ]
    report['rounds'].append(row)
    report['totals'] = _totals(report['rounds'])
    print(json.dumps(row), flush=True)
    with files.replacing(out) as part:
      part.write_text(json.dumps(report, indent=1) + '\n')
  print(json.dumps(report['totals']))


def _totals(rounds):
  killed = [row for row in rounds if row['killed']]
  hit = collections.Counter(row['where'] for row in killed)
  return {
      'rounds': len(rounds),
      'killed': len(killed),
      'uniform': sum(row['kind'] == 'uniform' for row in killed),
      'where': dict(sorted(hit.items())),
      'equal': sum(not row['differing'] for row in rounds),
  }


if __name__ == '__main__':
  main()
