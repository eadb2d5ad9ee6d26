"""Measures how fast models are, or counts what a step does on a GPU.

  gswinrmt benchmark --model rmt_t --batch 8 --threads 1 --peers eager

times the training step and inference on JAX's device, in turn with those of
other frameworks and with the rates of matrix products and of memory copies:
medians over the rounds, on random data. Each program has its own process.

  --peers plain     the same model as its equations are written, without the
                    faster forms
  --peers eager     the same model in PyTorch (benchmarks/torch_twin.py), after
                    comparing their outputs; compile: with torch.compile
  --peers NAME      a model of timm, such as swin_base_patch4_window7_224

  gswinrmt benchmark --pipeline --model retention_large --workers 8

times training as a run does it, augmentation included: on one repeated batch,
then with images on the device, in files, and decoded from JPEG when needed.

  gswinrmt benchmark --compiled-for h200 --model retention_compact

compiles the training step for that GPU, on any machine, and reads the program:
kernel launches, bytes that they read and write. Nothing is measured.
docs/performance.md explains both.
"""

import argparse
import contextlib
import pathlib
import signal

from gswinrmt_jax.commands import arguments, summarize
from gswinrmt_jax.errors import Stopped, UserError

_TASKS = ('train', 'inference', 'latency')
_STORAGES = ('device', 'disk', 'decode')
_IMAGES = 2048
# Options that --pipeline excludes.
_OTHERS = (
    *_TASKS,
    'run',
    'peers',
    'scaling',
    'depthwise',
    'start',
    'compiled_for',
    'augmented',
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add('--model', nargs='+', default=['retention_compact'], metavar='NAME')
  add('--batch', type=int, default=128, metavar='N', help='images per step')
  add(
      '--image-size',
      type=int,
      metavar='N',
      help='N x N pixels (default: as in the paper of each model)',
  )
  add(
      '--classes',
      type=int,
      metavar='N',
      help='number of logits (default: likewise)',
  )
  add('--json', metavar='FILE', help='default: benchmarks/results/...')

  add = parser.add_argument_group('measuring').add_argument
  add('--train', action='store_true', help='the training step')
  add('--inference', action='store_true', help='logits (default: both)')
  add('--latency', action='store_true', help='logits of one image at a time')
  add(
      '--run',
      nargs='+',
      metavar='DIR',
      help='with --latency: the models of these runs, in turn; writes their '
      'latency.json',
  )
  add(
      '--dtype',
      choices=('float32', 'bfloat16'),
      help='default: bfloat16, on a CPU float32',
  )
  add('--threads', type=int, metavar='N', help='cores of each process')
  add('--peers', nargs='+', default=[], metavar='PEER', help='see above')
  add(
      '--scaling',
      choices=('batch', 'resolution', 'depth'),
      help='how time grows with it; also writes a plot',
  )
  add(
      '--depthwise',
      action='store_true',
      help='depthwise convolutions alone, in both forms',
  )
  add('--start', action='store_true', help='imports, and a first step')
  add('--repeats', type=int, default=5, metavar='N', help='rounds (default: 5)')
  add(
      '--seconds',
      type=float,
      default=3.0,
      metavar='S',
      help='per program and round, and for its warm-up (default: 3)',
  )

  add = parser.add_argument_group('measuring the input pipeline').add_argument
  add(
      '--pipeline',
      nargs='*',
      choices=(*_STORAGES, 'memory'),
      metavar='STORAGE',
      help='training with its input pipeline over training without, for each '
      f'config.data.storage (default: {" ".join(_STORAGES)})',
  )
  add(
      '--images',
      type=int,
      metavar='N',
      help=f'number of synthetic images (default: {_IMAGES:,})',
  )
  add(
      '--workers',
      type=int,
      metavar='N',
      help="processes that decode (default: the recipe's, 0)",
  )

  add = parser.add_argument_group('counting').add_argument
  add('--compiled-for', choices=('h200',), help='the GPU')
  add(
      '--augmented',
      action='store_true',
      help="count the step with CIFAR-10's augmentation inside",
  )


def run(args: argparse.Namespace) -> int | None:
  """Runs the command; returns 1 if a model of ours could not be measured."""
  _check(args)
  if args.compiled_for:
    return _count(args)

  from gswinrmt_jax.benchmark import measure, worker

  def say(line):
    print(line, flush=True)

  try:
    with _ended_by_sigterm():
      bench = measure.Bench(
          repeats=args.repeats,
          seconds=args.seconds,
          threads=args.threads,
          dtype=args.dtype,
          say=say,
      )
      with contextlib.closing(bench):
        return _measure(args, bench, say)
  except worker.WorkerError as error:
    raise UserError(str(error)) from error


def _check(args):
  """Raises `UserError` for numbers out of range and for excluded options."""
  arguments.check_positive(
      args, 'batch', 'image_size', 'classes', 'threads', 'repeats', 'images'
  )
  if args.seconds <= 0:
    raise UserError('--seconds must be above 0')
  if args.workers is not None and args.workers < 0:
    raise UserError('--workers must be at least 0')
  if args.compiled_for and len(args.model) > 1:
    raise UserError('--compiled-for takes one --model')
  for name in ('images', 'workers') if args.pipeline is None else ():
    if getattr(args, name) is not None:
      raise UserError(f'--{name} is for --pipeline')
  for name in _OTHERS if args.pipeline is not None else ():
    if getattr(args, name):
      option = name.replace('_', '-')
      raise UserError(f'--pipeline is measured by itself, without --{option}')
  if args.run and not args.latency:
    raise UserError('--run is for --latency')
  if args.run and args.peers:
    raise UserError('--run measures runs in turn with each other, no --peers')


@contextlib.contextmanager
def _ended_by_sigterm():
  """On SIGTERM, ends processes and removes synthetic images, as on Ctrl-C."""

  def end(number, frame):
    raise Stopped('stopped by SIGTERM, nothing was written', number)

  before = signal.signal(signal.SIGTERM, end)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def _setting(args, model):
  """Returns image size and classes for a model."""
  setting = summarize.setting(model)
  return {
      'image_size': args.image_size or setting.image_size,
      'classes': args.classes or setting.num_classes,
  }


def _count(args):
  from gswinrmt_jax import files, recipes
  from gswinrmt_jax.benchmark import compiled

  (model,) = args.model
  setting = _setting(args, model)
  config = recipes.cifar10(model)
  config.batch_size = args.batch
  found = compiled.count_step(
      config,
      image_size=setting['image_size'],
      num_classes=setting['classes'],
      augmented=args.augmented,
      target=args.compiled_for,
  )
  print(compiled.table(found))
  if args.json:
    files.write_json(pathlib.Path(args.json), found)


def _measure(args, bench, say):
  from gswinrmt_jax import files
  from gswinrmt_jax.benchmark import models, pipeline, record, scaling, start

  machine = record.machine(bench.facts, args.threads)
  tasks = [task for task in _TASKS if getattr(args, task)]
  if args.pipeline is not None:
    tasks = ['pipeline']
  tasks = tasks or ['train', 'inference']
  words = [*args.model, *tasks]
  specs = [
      models.spec(model, task, batch=args.batch, **_setting(args, model))
      for model in args.model
      for task in tasks
  ]
  path = pathlib.Path(args.json) if args.json else None
  if args.start:
    words = ['start']
    rows = start.measure(
        args.repeats, args.threads, on_cpu=bench.platform == 'cpu'
    )
    say(start.table(rows))
    found = {'rows': rows}
  elif args.depthwise:
    words = ['depthwise']
    found = models.depthwise(bench, say)
  elif args.pipeline is not None:
    storages = tuple(dict.fromkeys(args.pipeline)) or _STORAGES
    pipelines = pipeline.Pipelines(
        storages, args.images or _IMAGES, args.workers
    )
    found = pipelines.measure(bench, specs, say)
  elif args.scaling:
    words += ['by', args.scaling]
    path = path or record.default_path(words, machine['device'])
    picture = path.with_suffix('.png')
    found = scaling.grow(bench, args.scaling, specs, picture, say)
  elif args.run:
    folders = [pathlib.Path(folder) for folder in args.run]
    words = ['latency', *(folder.name for folder in folders)]
    found = models.runs(bench, folders, machine, say)
  else:
    found = models.beside_peers(bench, specs, args.peers, say)
  path = path or record.default_path(words, machine['device'])
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(path, {'machine': machine, **found})
  say(f'wrote {path}')
  ours = slice(1 if args.pipeline is None else None)  # the others are peers
  return int(
      any(
          'not_measured' in row
          for group in found.get('groups', ())
          for row in group['rows'][ours]
      )
  )
