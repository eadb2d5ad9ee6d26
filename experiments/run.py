"""Trains a named set of runs, one after another.

  table5            CIFAR-10, the three compact models (Tables 5 and 6)
  table3            Mini-ImageNet, the three large models (Tables 3 and 4)
  table3-small      the same at 64x64, tiny models, four epochs: for a laptop
  ablation-cifar10  one component changed at a time, on CIFAR-10
  ablation-mini     the same on Mini-ImageNet
  smoke             tiny models on the digits, to check that everything runs

  python experiments/run.py ablation-cifar10 --seeds 3 --only 'retention_*'

Runs go to OUT/NAME/RUN_sSEED. The same command skips complete runs and resumes
the others. If a run fails, the others still run, and the exit status is 1.
--config.FIELD=VALUE changes a field of every run.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import contextlib
import fnmatch
import itertools
import pathlib
import signal
import subprocess
import sys
from typing import NamedTuple

import ablations
import ml_collections
import runs as runs_lib

from gswinrmt_jax import files, recipes
from gswinrmt_jax.commands import arguments, recipe_files
from gswinrmt_jax.errors import did_you_mean, UserError
from gswinrmt_jax.runs import run_folder

_TRAIN = (sys.executable, '-m', 'gswinrmt_jax', 'train')
_PATIENCE = 60  # seconds for an interrupted run to end by itself


class Entry(NamedTuple):
  """One configuration of a set.

  Attributes:
    name: Its run folders are named `NAME_sSEED`.
    spec: The value of `--config`.
    overrides: Arguments `--config.FIELD=VALUE`.
  """

  name: str
  spec: str
  overrides: tuple[str, ...] = ()


def _ablations(argument: str, *, at_32: bool) -> tuple[Entry, ...]:
  return tuple(
      Entry(f'{base}_{name}', f'ablation:{base},{name}{argument}')
      for base, table in ablations.SWITCHES.items()
      for name, switch in table.items()
      if not (at_32 and switch.idle)
  )


# Such a run is mostly compilation, and most of that is for augmentation, of
# which the recipe of the digits has almost none.
_SMOKE = ('--config.num_epochs=4',)

# The windowed regime at laptop scale: 64-pixel images give 16 x 16 tokens, so
# that windows of 4 are a quarter of a side, as windows of 14 are at 224 pixels.
# The model has under a million parameters; few epochs need little augmentation.
_SMALL = (
    '--config.data.image_size=64',
    '--config.dtype=float32',
    '--config.model.widths=(24,48,96,192)',
    '--config.model.depths=(1,1,2,1)',
    '--config.model.num_heads=(1,2,3,6)',
    '--config.model.layer_scale=(0.0,0.0,0.0,0.0)',
    '--config.augment.crop_padding=4',
    '--config.optimizer.learning_rate=1e-3',
    '--config.optimizer.warmup_epochs=0.5',
    '--config.num_epochs=4',
)
_WINDOW = '--config.model.window_size=4'

_MODELS = ('rmt', 'retention', 'swat')

SETS: Mapping[str, tuple[Entry, ...]] = {
    'table5': tuple(Entry(name, f'cifar10_{name}') for name in _MODELS),
    'table3': tuple(Entry(name, f'mini_imagenet_{name}') for name in _MODELS),
    'table3-small': (
        Entry('rmt', 'mini_imagenet_rmt:plain', _SMALL),
        Entry('retention', 'mini_imagenet_retention:plain', (*_SMALL, _WINDOW)),
        Entry('swat', 'mini_imagenet_swat:plain', (*_SMALL, _WINDOW)),
    ),
    'ablation-cifar10': _ablations('', at_32=True),
    'ablation-mini': _ablations(',mini', at_32=False),
    'smoke': (
        *(Entry(name, f'digits_{name}:smoke', _SMOKE) for name in _MODELS),
        Entry(
            'retention_no_gate',
            'digits_retention:smoke',
            (*_SMOKE, '--config.model.gate=False'),
        ),
    ),
}


class Job(NamedTuple):
  """One run of a set.

  Attributes:
    folder: Its run folder.
    arguments: Arguments of `gswinrmt train`.
    config: The resolved recipe, every field with its value.
  """

  folder: pathlib.Path
  arguments: tuple[str, ...]
  config: ml_collections.ConfigDict


def jobs(
    name: str,
    out: pathlib.Path,
    *,
    seeds: int,
    overrides: Sequence[str] = (),
    only: str = '*',
) -> list[Job]:
  """Returns the runs of a set: every entry with seed 0, then with seed 1, etc.

  Args:
    name: A key of `SETS`.
    out: Run folders are `OUT/NAME/RUN_sSEED`.
    seeds: Number of seeds, starting from 0.
    overrides: Arguments `--config.FIELD=VALUE` for every run.
    only: Names of the set's entries, separated by commas; `*` matches any
      characters.

  Raises:
    UserError: If there is no such set or entry, or a recipe does not take an
      override.
  """
  if name not in SETS:
    near = did_you_mean(name, SETS) or f'; there are {", ".join(SETS)}'
    raise UserError(f"no experiment '{name}'{near}")
  for override in overrides:
    if override.partition('=')[0].lstrip('-') == 'config.seed':
      raise UserError(f'{override}: --seeds sets the seeds of an experiment')
  found = []
  for seed, entry in itertools.product(range(seeds), _chosen(name, only)):
    fields = (*entry.overrides, *overrides, f'--config.seed={seed}')
    folder = out / name / f'{entry.name}_s{seed}'
    words = (f'--config={entry.spec}', f'--workdir={folder}', *fields)
    recipe, config, _ = recipe_files.adapted(entry.spec, fields)
    _check_design(entry, recipe, config)
    if config.init_from:
      config.init_from = arguments.weights(config.init_from)
    if not (folder / 'config.json').exists():
      recipes.check_used(config, recipe)
    config = recipes.resolve(config)
    found.append(Job(folder, words, config))
  return found


def _check_design(entry, recipe, config):
  """Refuses overrides of what an ablation compares, the design of models."""
  if not entry.spec.startswith('ablation:'):
    return
  first, second = (
      ablations.label(recipes.resolve(one).model) for one in (recipe, config)
  )
  if first != second:
    raise UserError(
        f'--config.model would turn {first} into {second}, but the folder is '
        f'named {entry.name}: change the bases in configs/ablation.py instead'
    )


def _chosen(name, only):
  """Returns the entries whose names match one of the patterns, in order."""
  names, chosen = [entry.name for entry in SETS[name]], set()
  for pattern in only.split(','):
    matching = fnmatch.filter(names, pattern.strip())
    if not matching:
      raise UserError(
          f"no run '{pattern.strip()}' in the set; there are "
          f'{", ".join(names)}'
      )
    chosen.update(matching)
  return [entry for entry in SETS[name] if entry.name in chosen]


def train(
    jobs: Sequence[Job],
    program: Sequence[str] = _TRAIN,
    say: Callable[[str], None] = print,
) -> list[Job]:
  """Trains the jobs that are not complete; failures do not stop the others.

  Each run is a separate process: its host and device memory is free for the
  next run, and killing it does not affect the others. This process must not
  touch a device, since JAX would allocate memory there.

  `program` is the training command without a job's arguments. Returns the jobs
  that failed.
  """
  failed = []
  for number, job in enumerate(jobs, 1):
    title = f'[{number}/{len(jobs)}] {job.folder}'
    # Next to the folder, since the run itself holds the lock inside.
    lock = job.folder.parent / f'.{job.folder.name}.lock'
    try:
      lock.parent.mkdir(parents=True, exist_ok=True)
      with files.locked(lock):
        state = status(job).state
        if state == 'complete':
          say(f'{title}: complete, skipped')
          continue
        say(f'{title}: {state}')
        code = _wait(subprocess.Popen([*program, *job.arguments]))
      if code:
        say(f'{title}: failed with status {code}')
        failed.append(job)
    except files.LockedError as holder:
      say(f'{title}: {holder} is training it, skipped')
    except (UserError, OSError) as error:  # does not end the other runs
      say(f'{title}: failed: {error}')
      failed.append(job)
  return failed


def _wait(process: subprocess.Popen) -> int:
  """Returns the exit status; if this process is stopped, stops the run."""
  before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  try:
    return process.wait()
  except KeyboardInterrupt:
    # The terminal also interrupts the run, which then ends by itself.
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(_PATIENCE)
    raise
  finally:
    signal.signal(signal.SIGTERM, before)
    if process.poll() is None:
      process.terminate()
      process.wait()


class Status(NamedTuple):
  """Progress of a run in words, and its last scores; None if there is none."""

  state: str
  val_score: float | None = None
  test_score: float | None = None


def status(job: Job) -> Status:
  """Returns the progress of a run, as found in its folder.

  Its state is 'complete' if it reached its last epoch and has a summary, with
  the score of the test split if the recipe has one.

  Raises:
    UserError: If the folder cannot be read.
  """
  if not (job.folder / 'config.json').exists():
    return Status('not begun')
  found = runs_lib.read(job.folder)
  config = runs_lib.with_splits(job.config, found.config.data)
  # The config of a run has the absolute path of class folders.
  place = found.config.data.name
  if pathlib.Path(config.data.name).absolute().name == pathlib.Path(place).name:
    config.data.name = place
  differing = run_folder.differences(found.config, config)
  if differing:
    return Status(f'of another config: {"; ".join(differing)}')
  if not found.epochs:
    return Status('not begun')
  state, stop = found.progress, job.config.stop_after_epochs
  if stop:
    state = f'epoch {found.epoch} of {stop}'
  if found.finished and config.data.test_split and found.test_score is None:
    state = 'not tested'
  elif found.finished or (stop and found.summary and found.epoch >= stop):
    state = 'complete'
  return Status(state, found.curve[found.epoch], found.test_score)


def status_table(jobs: Sequence[Job]) -> str:
  """Returns a line for each run, and how many are complete."""
  width = max(len(job.folder.name) for job in jobs)
  lines, done = [f'{"":<{width}}  {"validation":>10}{"test":>9}'], 0
  for job in jobs:
    try:
      found = status(job)
    except UserError as error:
      found = Status(str(error))
    val, test = ('-' if one is None else f'{one:.2%}' for one in found[1:])
    name = f'{job.folder.name:<{width}}'
    lines.append(f'{name}  {val:>10}{test:>9}  {found.state}')
    done += found.state == 'complete'
  return '\n'.join([*lines, f'{done} of {len(jobs)} runs are complete.'])


def main(argv: Sequence[str] | None = None) -> int:
  """Trains the set; returns 1 if a run failed."""
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('name', metavar='NAME', help='name of the set')
  add(
      '--seeds',
      type=int,
      default=3,
      help='runs of each configuration, with seeds 0 to N - 1 (default: 3)',
  )
  add(
      '--only',
      default='*',
      metavar='NAMES',
      help="runs of the set, such as 'retention_base,retention_no_*' (default: "
      'all)',
  )
  add('--out', default='runs', metavar='DIR', help='default: runs')
  add(
      '--status',
      action='store_true',
      help='print how far the runs are, and train nothing',
  )
  argv = sys.argv[1:] if argv is None else argv
  overrides, others = arguments.take_overrides(argv)
  args = parser.parse_args(others)
  if args.seeds < 1:
    parser.error('--seeds must be at least 1')
  out = pathlib.Path(args.out).expanduser()
  try:
    found = jobs(
        args.name, out, seeds=args.seeds, overrides=overrides, only=args.only
    )
  except UserError as error:
    parser.error(str(error))
  failed = []
  try:
    if not args.status:
      failed = train(found, say=lambda line: print(line, flush=True))
  except KeyboardInterrupt:
    print('interrupted: the same command resumes', file=sys.stderr)
    return 130
  print(status_table(found))
  for job in failed:
    print(f'failed: {job.folder}', file=sys.stderr)
  print(f'python experiments/report.py {out / args.name}')
  return 1 if failed else 0


if __name__ == '__main__':
  sys.exit(main())
