"""Measures how fast models are, or counts what a step does on a GPU.

  gswinrmt benchmark --model rmt_t --batch 8 --threads 1 --peers eager

times the training step and inference on the device that JAX has, in turn with
those of other frameworks, and the rates of products and of memory with them:
medians over the rounds, on random data. Each program has its own process.

  --peers plain     the same model on XLA's own convolutions
  --peers eager     the same model in PyTorch (benchmarks/torch_twin.py), which
                    is compared with it first; compile: by torch.compile
  --peers NAME      a model of timm, such as swin_base_patch4_window7_224

  gswinrmt benchmark --pipeline --model retention_large --workers 8

times training as a run does it, augmentation included: without its feed, then
with images on the device, in files, and decoded from JPEG when needed.

  gswinrmt benchmark --compiled-for h200 --model retention_compact

compiles the training step for that GPU on any machine and reads its program:
kernels that are launched, bytes that they read and write, the least that could
be. Nothing is measured. docs/performance.md has both.
"""

import argparse
import json
import pathlib

from gswinrmt_jax.commands import arguments, summarize
from gswinrmt_jax.errors import UserError

_TASKS = ('train', 'inference', 'latency')
_SCALED = ('batch', 'resolution', 'depth')
_FED_FROM = ('device', 'disk', 'decode')
_PICTURES = 2048
# What --pipeline is not measured with.
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
  add('--batch', type=int, default=128, metavar='N', help='images in a step')
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
  _add_measuring(parser)
  _add_pipeline(parser)
  counted = parser.add_argument_group('counting')
  add = counted.add_argument
  add('--compiled-for', choices=('h200',), help='which GPU')
  add(
      '--augmented',
      action='store_true',
      help="count the step with CIFAR-10's augmentation inside",
  )


def _add_measuring(parser):
  measured = parser.add_argument_group('measuring')
  add = measured.add_argument
  add('--train', action='store_true', help='the training step')
  add('--inference', action='store_true', help='logits (default: both)')
  add('--latency', action='store_true', help='logits of one image, waited for')
  add(
      '--run',
      nargs='+',
      metavar='DIR',
      help='with --latency: the models of runs, in turn with each other; '
      'writes their latency.json',
  )
  add(
      '--dtype',
      choices=('float32', 'bfloat16'),
      help='default: bfloat16, on a CPU float32',
  )
  add('--threads', type=int, metavar='N', help='cores of each process')
  add('--peers', nargs='+', default=[], metavar='PEER', help='see above')
  add('--scaling', choices=_SCALED, help='how time grows; draws it as well')
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
      help='of each program in a round, and to warm it up (default: 3)',
  )


def _add_pipeline(parser):
  fed = parser.add_argument_group('measuring the pipeline')
  add = fed.add_argument
  add(
      '--pipeline',
      nargs='*',
      choices=(*_FED_FROM, 'memory'),
      metavar='STORAGE',
      help='training with its feed over training without, for each '
      f'config.data.storage (default: {" ".join(_FED_FROM)})',
  )
  add(
      '--images',
      type=int,
      metavar='N',
      help=f'pictures that are made up for it (default: {_PICTURES:,})',
  )
  add(
      '--workers',
      type=int,
      metavar='N',
      help="processes that decode (default: the recipe's, 0)",
  )


def run(args: argparse.Namespace) -> int | None:
  """Runs the command; returns 1 if a program of ours could not be measured."""
  arguments.check_positive(
      args, 'batch', 'image_size', 'classes', 'threads', 'repeats', 'images'
  )
  if args.seconds <= 0:
    raise UserError('--seconds must be above 0')
  _check_pipeline(args)
  if args.compiled_for:
    return _count(args)
  if args.run and not args.latency:
    raise UserError('--run is for --latency')
  if args.run and args.peers:
    raise UserError('--run measures runs in turn with each other, no --peers')
  return _measure(args)


def _check_pipeline(args):
  if args.workers is not None and args.workers < 0:
    raise UserError('--workers must be at least 0')
  if args.pipeline is None:
    for name in ('images', 'workers'):
      if getattr(args, name) is not None:
        raise UserError(f'--{name} is for --pipeline')
    return
  for name in _OTHERS:
    if getattr(args, name):
      option = name.replace('_', '-')
      raise UserError(f'--pipeline is measured by itself, without --{option}')


def _setting(args, model):
  """Returns image size and classes for a model."""
  setting = summarize.setting(model)
  return {
      'image_size': args.image_size or setting.image_size,
      'classes': args.classes or setting.num_classes,
  }


def _count(args):
  from gswinrmt_jax import recipes
  from gswinrmt_jax.benchmark import report

  if len(args.model) > 1:
    raise UserError('--compiled-for takes one --model')
  (model,) = args.model
  setting = _setting(args, model)
  config = recipes.cifar10(model)
  config.batch_size = args.batch
  found = report.count_step(
      config,
      image_size=setting['image_size'],
      num_classes=setting['classes'],
      augmented=args.augmented,
      target=args.compiled_for,
  )
  print(report.table(found))
  if args.json:
    pathlib.Path(args.json).write_text(json.dumps(found, indent=1) + '\n')


def _measure(args):
  from gswinrmt_jax.benchmark import measure, process

  def say(line):
    print(line, flush=True)

  settings = measure.Settings(args.repeats, args.seconds, args.threads)
  try:
    bench = measure.Bench(settings, args.dtype, say)
    try:
      return _measure_with(args, bench, say)
    finally:
      bench.close()
  except process.ArmError as error:
    raise UserError(str(error)) from error


def _measure_with(args, bench, say):
  from gswinrmt_jax.benchmark import feeding, record, run_latency, start, suite
  from gswinrmt_jax.training import run_folder

  machine = record.machine(bench.facts, args.threads)
  tasks = [task for task in _TASKS if getattr(args, task)]
  if args.pipeline is not None:
    tasks = ['pipeline']
  tasks = tasks or ['train', 'inference']
  words = [*args.model, *tasks]
  specs = [
      suite.model_spec(model, task, batch=args.batch, **_setting(args, model))
      for model in args.model
      for task in tasks
  ]
  path = pathlib.Path(args.json) if args.json else None
  if args.start:
    rows = start.measure(args.repeats, args.threads)
    say(start.table(rows))
    found, words = {'rows': rows}, ['start']
  elif args.depthwise:
    found, words = suite.depthwise(bench, say), ['depthwise']
  elif args.pipeline is not None:
    storages = tuple(dict.fromkeys(args.pipeline)) or _FED_FROM
    fed = feeding.Feeding(storages, args.images or _PICTURES, args.workers)
    found = suite.pipeline(bench, specs, fed, say)
  elif args.scaling:
    words += ['by', args.scaling]
    path = path or record.default_path(words, machine['device'])
    picture = path.with_suffix('.png')
    found = suite.growth(bench, args.scaling, specs, picture, say)
  elif args.run:
    folders = [pathlib.Path(folder) for folder in args.run]
    specs = {str(folder): run_latency.run_spec(folder) for folder in folders}
    found = suite.runs(bench, specs, say)
    for row in (row for group in found['groups'] for row in group['rows']):
      folder = pathlib.Path(row['arm'])
      run_latency.write(folder, row, machine)
      say(f'wrote {folder / "latency.json"}')
    words = ['latency', *(folder.name for folder in folders)]
  else:
    found = suite.models(bench, specs, args.peers, say)
  path = path or record.default_path(words, machine['device'])
  path.parent.mkdir(parents=True, exist_ok=True)
  run_folder.write_json(path, {'machine': machine, **found})
  say(f'wrote {path}')
  ours = slice(1 if args.pipeline is None else None)  # behind it are peers
  return int(
      any(
          'not_measured' in row
          for group in found.get('groups', ())
          for row in group['rows'][ours]
      )
  )
