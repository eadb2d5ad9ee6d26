"""Measures how fast models are.

  gswinrmt benchmark --model rmt_t --batch 8 --threads 1 --peers eager

times the training step and inference on JAX's device, interleaved with those of
other frameworks and with a large matmul. Results are medians over rounds, on
random data. Each program has its own process.

  --peers plain     the same model as its equations are written, without the
                    faster implementations
  --peers eager     the same model in PyTorch (benchmarks/torch_twin.py), after
                    comparing their outputs; compile: with torch.compile
  --peers NAME      a model of timm, such as swin_base_patch4_window7_224

  gswinrmt benchmark --pipeline --model retention_large --workers 8

times training as in a run, augmentation included: on one repeated batch, then
with images on the device, in files, and decoded from JPEG on demand.

docs/performance.md explains what is timed and lists results.
"""

import argparse
import contextlib
import functools
import importlib.util
import pathlib
import signal

from gswinrmt_jax import files
from gswinrmt_jax.commands import arguments, summarize
from gswinrmt_jax.errors import did_you_mean, Stopped, UserError

_PEERS = ('plain', 'eager', 'compile')
_TASKS = ('train', 'inference', 'latency')
_STORAGES = ('device', 'disk', 'decode')
_IMAGES = 2048  # of --pipeline
_OTHERS = ('run', 'scaling', 'depthwise', 'start', 'pipeline')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments."""
  add = parser.add_argument
  add('--model', nargs='+', default=['retention_compact'], metavar='NAME')
  arguments.add_number(parser, '--batch', default=128, help='images per step')
  arguments.add_number(
      parser,
      '--image-size',
      help='N x N pixels (default: as in the paper of each model)',
  )
  arguments.add_number(
      parser, '--classes', help='number of logits (default: as in the paper)'
  )
  add(
      '--dtype',
      choices=('float32', 'bfloat16'),
      help='default: bfloat16, on a CPU float32',
  )
  arguments.add_number(parser, '--threads', help='cores of each process')
  arguments.add_number(
      parser, '--repeats', default=5, help='rounds (default: 5)'
  )
  add(
      '--seconds',
      type=float,
      default=3.0,
      metavar='S',
      help='per program and round, and for its warm-up (default: 3)',
  )
  add('--json', metavar='FILE', help='default: benchmarks/results/...')

  add = parser.add_argument_group('models and their peers').add_argument
  add('--train', action='store_true', help='the training step')
  add('--inference', action='store_true', help='logits (default: both)')
  add('--latency', action='store_true', help='logits of one image at a time')
  add('--peers', nargs='+', default=[], metavar='PEER', help='see above')

  group = parser.add_argument_group('instead of models and their peers')
  add = group.add_mutually_exclusive_group().add_argument
  add(
      '--run',
      nargs='+',
      metavar='DIR',
      help='latency of the models of these runs; writes their latency.json',
  )
  add(
      '--scaling',
      choices=('batch', 'resolution', 'depth'),
      help='how time grows with batch size, image size or depth',
  )
  add(
      '--depthwise',
      action='store_true',
      help='depthwise convolutions alone, in both implementations',
  )
  add('--start', action='store_true', help='time to a first training step')
  add(
      '--pipeline',
      nargs='*',
      choices=(*_STORAGES, 'memory'),
      metavar='STORAGE',
      help='training with its input pipeline over training without, for each '
      f'config.data.storage (default: {" ".join(_STORAGES)})',
  )

  group = parser.add_argument_group('with --pipeline')
  arguments.add_number(
      group,
      '--images',
      help=f'number of synthetic images (default: {_IMAGES:,})',
  )
  arguments.add_number(
      group,
      '--workers',
      least=0,
      help="processes that decode (default: the recipe's, 0)",
  )


def run(args: argparse.Namespace) -> int | None:
  """Runs the command; returns 1 if a program of ours could not be measured."""
  if args.seconds <= 0:
    raise UserError('--seconds must be above 0')
  chosen = [
      name for name in _OTHERS if getattr(args, name) not in (None, False)
  ]
  for name in chosen:
    fixed = () if name == 'scaling' else _TASKS
    for other in ('peers', *fixed):
      if getattr(args, other) and (name, other) != ('run', 'latency'):
        raise UserError(f'--{name} takes no --{other}')
  if args.pipeline is None and (args.images, args.workers) != (None, None):
    raise UserError('--images and --workers are for --pipeline')
  for model in args.model:
    summarize.setting(model)
  _check_peers(args.peers)
  if args.json:
    files.check_can_write(pathlib.Path(args.json))

  from gswinrmt_jax.benchmark import measure

  with _ended_by_sigterm():
    bench = measure.Bench(
        repeats=args.repeats,
        seconds=args.seconds,
        threads=args.threads,
        dtype=args.dtype,
        say=functools.partial(print, flush=True),
    )
    with contextlib.closing(bench):
      return _measure(args, bench)


def _check_peers(peers):
  """Refuses unknown peers before anything is measured."""
  others = [peer for peer in peers if peer not in _PEERS]
  if others and not importlib.util.find_spec('timm'):
    near = did_you_mean(others[0], _PEERS)
    raise UserError(
        f"--peers is '{others[0]}': must be {', '.join(_PEERS)}{near}, or a "
        'model of timm, which is not installed (pip install timm)'
    )


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


def _measure(args, bench):
  from gswinrmt_jax.benchmark import models, pipeline, record, start

  machine = record.machine(bench.facts, args.threads)
  tasks = [task for task in _TASKS if getattr(args, task)]
  tasks = tasks or ['train', 'inference']
  if args.pipeline is not None:
    tasks = ['pipeline']
  folders = [pathlib.Path(folder) for folder in args.run or ()]
  specs = [
      models.spec(
          model,
          task,
          batch=args.batch,
          image_size=args.image_size or summarize.setting(model).image_size,
          classes=args.classes or summarize.setting(model).num_classes,
      )
      for model in args.model
      for task in tasks
  ]
  words = [*args.model, *tasks]
  if args.start:
    words = ['start']
  elif args.depthwise:
    words = ['depthwise']
  elif args.run:
    words = ['latency', *(folder.name for folder in folders)]
  elif args.scaling:
    words += ['by', args.scaling]
  path = record.default_path(words, machine['device'])
  path = pathlib.Path(args.json or path)
  files.check_can_write(path)

  if args.start:
    found = {'rows': start.measure(args.repeats, args.threads)}
    bench.say(start.table(found['rows']))
  elif args.depthwise:
    found = models.depthwise(bench)
  elif args.pipeline is not None:
    found = pipeline.measure(
        bench,
        specs,
        storages=args.pipeline or _STORAGES,
        images=args.images or _IMAGES,
        workers=args.workers,
    )
  elif args.run:
    found = models.runs(bench, folders, machine)
  elif args.scaling:
    found = models.grow(bench, args.scaling, specs)
  else:
    found = models.beside_peers(bench, specs, args.peers)
  path.parent.mkdir(parents=True, exist_ok=True)
  files.write_json(path, {'machine': machine, **found})
  bench.say(f'wrote {path}')
  failed = (
      'not_measured' in row and 'peer' not in row
      for group in found.get('groups', ())
      for row in group['rows']
  )
  return int(any(failed))
