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
import contextlib
import json
import pathlib
import signal

from gswinrmt_jax.commands import benchmark_options, summarize
from gswinrmt_jax.errors import Stopped, UserError

add_arguments = benchmark_options.add_arguments


def run(args: argparse.Namespace) -> int | None:
  """Runs the command; returns 1 if a program of ours could not be measured."""
  benchmark_options.check(args)
  if args.compiled_for:
    return _count(args)
  with _ended_by_sigterm():
    return _measure(args)


@contextlib.contextmanager
def _ended_by_sigterm():
  """Has SIGTERM leave no processes and no pictures behind, as Ctrl-C does."""

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
  from gswinrmt_jax.runs import run_folder

  machine = record.machine(bench.facts, args.threads)
  tasks = [task for task in benchmark_options.TASKS if getattr(args, task)]
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
    rows = start.measure(
        args.repeats, args.threads, on_cpu=bench.platform == 'cpu'
    )
    say(start.table(rows))
    found, words = {'rows': rows}, ['start']
  elif args.depthwise:
    found, words = suite.depthwise(bench, say), ['depthwise']
  elif args.pipeline is not None:
    storages = tuple(dict.fromkeys(args.pipeline)) or benchmark_options.FED_FROM
    fed = feeding.Feeding(
        storages, args.images or benchmark_options.PICTURES, args.workers
    )
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
