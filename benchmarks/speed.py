"""Measures how fast models train and predict on JAX's device.

  python benchmarks/speed.py --train --model rmt_t --batch 8 --threads 1 \
    --peers eager

Each model is interleaved with its peers and with a large matmul, each program
in its own process, on random data. Results are medians over rounds.
docs/performance.md explains what is timed and lists results. A peer is

  plain         the same model as its equations are written, without the faster
                implementations
  muon          trained with Muon instead of AdamW
  window_size=7 another value of the model's fields, as for `create_model`, or
                of `batch`, `image_size`, `classes`
  TMPDIR=/x     environment variables (capitals), several as one quoted argument
  ../other      the same model of another checkout of this repository
  eager         the same model in PyTorch (torch_twin.py), after comparing their
                outputs; compile: with torch.compile
  NAME          a model of timm, such as swin_base_patch4_window7_224
"""

import argparse
import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import datetime
import importlib.util
import itertools
import os
import pathlib
import platform
import re
import sys
from typing import Any

import numpy as np
import worker

import gswinrmt_jax
from gswinrmt_jax import files
from gswinrmt_jax.commands import summarize
from gswinrmt_jax.errors import did_you_mean, UserError

_TASKS = ('train', 'inference', 'latency')
_PEERS = ('plain', 'muon', 'eager', 'compile')
_RESOLUTIONS = (1, 9 / 7, 11 / 7, 13 / 7, 16 / 7)  # 224, 288, 352, 416, 512
_BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
_SIZES = ('batch', 'image_size', 'classes')
_MIN_CALLS = 2  # in a warm-up, however long a call takes
_HEAD = (
    *('', 'ms', '±', 'img/s', 'relative', 'MFU'),
    *('peak GB', 'temporaries GB', 'page faults'),
)


def warm_up(program: worker.Worker, seconds: float) -> int:
  """Calls a program for at least `seconds`.

  Returns:
    The number of calls that take about that long, at least one.
  """
  calls, done, total = 1, 0, 0.0
  while True:
    spent = program.run(calls)
    done, total = done + calls, total + spent
    per_call = spent / calls
    if total >= seconds and done >= _MIN_CALLS:
      # From the last stretch, since the first calls are slower.
      return max(1, round(seconds / per_call))
    remaining = round((seconds - total) / per_call)
    calls = max(1, min(2 * calls, remaining))


def interleaved(
    programs: Sequence[worker.Worker],
    calls: Sequence[int],
    repeats: int,
    say: Callable[[str], None],
) -> list[list[float]]:
  """Times warm programs in turn: A B C, A B C, and so on.

  The usual cause of a wrong ratio is a machine that is slower for one program
  than for the other, from a warmer chip or from other load. In each of
  `repeats` rounds, a program is called as often as `calls` says. Returns for
  each program its seconds per call in each round.
  """
  taken = [[] for _ in programs]
  for repeat in range(repeats):
    for program, count, seconds in zip(programs, calls, taken, strict=True):
      seconds.append(program.run(count) / count)
    say(f'round {repeat + 1} of {repeats}')
  return taken


def figures(seconds: Sequence[float]) -> dict[str, Any]:
  """Returns the median of seconds per call over rounds, and its spread.

  The spread is half the interquartile range divided by the median.
  """
  low, median, high = np.percentile(seconds, (25, 50, 75))
  return {
      'milliseconds': 1e3 * median,
      'spread': (high - low) / 2 / median,
      'repeats_ms': [1e3 * one for one in seconds],
  }


def compare(rows: Sequence[dict[str, Any]], flops: float) -> None:
  """Adds throughput, relative speed and model FLOP utilisation to each row.

  - 'images_per_second': the median over rounds.
  - 'relative': throughput over that of the first program, as the median of the
    ratios within a round. The timings of a round are close in time, so their
    ratio is steadier than the ratio of two medians.
  - 'mfu': FLOP per second of the model's matmuls and convolutions (two per
    multiply-accumulate, three passes in training) over `flops`, the FLOP per
    second of the matmul.
  """
  first = None  # images per second of the first program, by round
  for row in rows:
    if 'not_measured' in row:
      continue
    rates = 1e3 * row['facts']['images'] / np.array(row['repeats_ms'])
    if row is rows[0]:
      first = rates
    row['images_per_second'] = float(np.median(rates))
    row['relative'] = None if first is None else float(np.median(rates / first))
    if 'flops' in row['facts']:
      row['mfu'] = 1e3 * row['facts']['flops'] / row['milliseconds'] / flops


class Bench:
  """Times groups of programs, each together with a matmul.

  Attributes:
    facts: About the machine.
    say: Receives progress and tables.
  """

  def __init__(
      self,
      *,
      repeats: int = 5,
      seconds: float = 3.0,
      threads: int | None = None,
      dtype: str | None = None,
      say: Callable[[str], None] = print,
  ):
    """Starts the process of the matmul.

    Args:
      repeats: Number of rounds.
      seconds: Length of each program's turn in a round, and of its warm-up.
      threads: Cores of every process; None for all.
      dtype: Computation dtype; None for the platform's default.
      say: Receives progress and tables.

    Raises:
      worker.WorkerError: If it fails.
    """
    self._repeats, self._seconds, self.say = repeats, seconds, say
    self._cores = worker.choose_cores(threads)
    matmul = {'task': 'matmul', 'dtype': dtype}
    self._matmul = worker.Worker(matmul, self._cores)
    self.facts = self._matmul.facts

  def close(self) -> None:
    """Ends the process of the matmul."""
    self._matmul.close()

  def measure(self, specs: Mapping[str, worker.Spec]) -> dict[str, Any]:
    """Times programs and the matmul in the same rounds; prints a table.

    Args:
      specs: Specs by name; dtype and platform are filled in.

    Returns:
      'rows', one per program: its spec with the results of `figures` and
      `compare`, or in 'not_measured' why it could not be built or warmed up;
      'rates', the FLOP per second of the matmul; and 'rates_spread'.
    """
    shared = {name: self.facts[name] for name in ('dtype', 'platform')}
    rows, running = [], []  # a running program: its row, handle and calls
    with contextlib.ExitStack() as stack:
      for name, spec in specs.items():  # built and warmed up one by one, alone
        rows.append({'program': name, **spec, **shared})
        self.say(f'{name}: building')
        try:
          program = worker.Worker({**spec, **shared}, self._cores)
          stack.callback(program.close)
          calls = warm_up(program, self._seconds)
        except worker.WorkerError as error:
          rows[-1]['not_measured'] = str(error)
          self.say(f'{name}: {error}')
        else:
          running.append((rows[-1], program, calls))
      matmul = {}
      calls = warm_up(self._matmul, self._seconds / 4)  # it varies less
      running.append((matmul, self._matmul, calls))
      found, programs, calls = zip(*running, strict=True)
      timed = interleaved(programs, calls, self._repeats, self.say)
      for row, program, count, seconds in zip(
          found, programs, calls, timed, strict=True
      ):
        size, owner = program.peak()
        row |= {**figures(seconds), 'calls': count, 'facts': program.facts}
        row |= {'peak_bytes': size, 'peak_of': owner}
    flops = 1e3 * matmul['facts']['flops'] / matmul['milliseconds']
    compare(rows, flops)
    self.say(f'\n{table(rows)}\nmeasured matmul: {flops / 1e12:.4g} TFLOP/s\n')
    return {
        'rows': rows,
        'rates': {'flops': flops},
        'rates_spread': {'matmul': matmul['spread']},
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
  """Returns a Markdown table of programs, followed by a line per failure."""
  measured = [_cells(row) for row in found if 'milliseconds' in row]
  columns = zip(_HEAD, *measured, strict=True)
  widths = [max(map(len, column)) for column in columns]
  rows = [_HEAD, ['-' * width for width in widths], *measured]
  lines = []
  for first, *rest in rows:
    padded = [first.ljust(widths[0])]
    padded += [c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)]
    lines.append(f'| {" | ".join(padded)} |')
  lines += [
      f'{row["program"]}: not measured: {row["not_measured"]}'
      for row in found
      if 'not_measured' in row
  ]
  return '\n'.join(lines)


def _cells(row):
  size, owner = row['peak_bytes'], row['peak_of']
  temporaries = row['facts'].get('temporaries')
  faults = row['facts'].get('page_faults')
  return (
      row['program'],
      f'{row["milliseconds"]:.4g}',
      f'{row["spread"]:.1%}',
      f'{row["images_per_second"]:.4g}',
      f'{row["relative"]:.3f}' if row['relative'] else '',
      f'{row["mfu"]:.1%}' if 'mfu' in row else '',
      f'{size / 1e9:.2f} ({owner})',
      '' if temporaries is None else f'{temporaries / 1e9:.3f}',
      '' if faults is None else f'{faults:,}',
  )


def machine(facts: Mapping[str, Any], threads: int | None) -> dict[str, Any]:
  """Returns the command, the machine and its software, as JSON values."""
  return {
      'command': ' '.join(['benchmarks/speed.py', *sys.argv[1:]]),
      'measured': datetime.datetime.now(datetime.UTC).isoformat('T', 'seconds'),
      'gswinrmt_jax': gswinrmt_jax.__version__,
      'platform': facts['platform'],
      'device': facts['device'],
      'processor': _processor(),
      'cores': os.cpu_count(),
      'threads': threads,
      'load_before': os.getloadavg()[0],
      'versions': facts['versions'],
  }


def _processor():
  text = pathlib.Path('/proc/cpuinfo').read_text()
  found = re.search(r'^model name\s*: (.*)$', text, re.MULTILINE)
  return found[1] if found else platform.processor()


def peer_of(spec: worker.Spec, peer: str) -> worker.Spec:
  """Returns the spec of a peer of a model, see `--peers`.

  Raises:
    UserError: If it would be a model of timm, and timm is not installed.
  """
  if peer in ('plain', 'muon'):
    return {**spec, peer: True}
  if pathlib.Path(peer, 'gswinrmt_jax').is_dir():
    return {**spec, 'checkout': str(pathlib.Path(peer).resolve())}
  # A value ends where the next name begins: it may contain spaces.
  values = dict(re.findall(r'(\w+)=(.*?)(?=\s+\w+=|\s*$)', peer))
  if values and all(name.isupper() for name in values):
    return {**spec, 'env': values}
  if values:
    fields = {name: _literal(value) for name, value in values.items()}
    sizes = {name: fields.pop(name) for name in _SIZES if name in fields}
    return {**spec, **sizes, 'fields': {**spec['fields'], **fields}}
  if peer not in _PEERS and not importlib.util.find_spec('timm'):
    near = did_you_mean(peer, _PEERS)
    raise UserError(
        f"--peers is '{peer}': must be {', '.join(_PEERS)}{near}, fields, "
        'environment variables, a checkout, or a model of timm, which is not '
        'installed (pip install timm)'
    )
  return {**spec, 'peer': peer}


def _literal(text):
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def beside_peers(
    bench: Bench, specs: Iterable[worker.Spec], peers: Sequence[str]
) -> list[dict[str, Any]]:
  """Measures each model together with its peers."""
  groups = []
  for spec in specs:
    name = f'{spec["model"]}, {spec["task"]}'
    programs = {f'{name}: {peer}': peer_of(spec, peer) for peer in peers}
    groups.append(bench.measure({name: spec, **programs}))
  return groups


def points(axis: str, spec: worker.Spec) -> dict[int, worker.Spec]:
  """Returns specs by 'batch' (images) or 'resolution' (pixels a side)."""
  if axis == 'batch':
    values = {max(1, round(spec['batch'] * factor)) for factor in _BATCHES}
    return {value: {**spec, 'batch': value} for value in sorted(values)}
  sizes = [4 * round(spec['image_size'] * f / 4) for f in _RESOLUTIONS]
  return {size: {**spec, 'image_size': size} for size in sizes}


def exponent(macs: Sequence[float], milliseconds: Sequence[float]) -> float:
  """Returns `p` of the best fit `time = a * macs^p`.

  Attention within windows of M tokens costs `O(H W M C)`, so the
  multiply-accumulates grow linearly with tokens and images. At p = 1, the time
  is proportional to them; below 1, part of the time is overhead.
  """
  return float(np.polyfit(np.log(macs), np.log(milliseconds), 1)[0])


def grow(
    bench: Bench, axis: str, specs: Iterable[worker.Spec]
) -> list[dict[str, Any]]:
  """Measures how the time of models grows along an axis.

  Raises:
    UserError: If no model can be measured at two points.
  """
  groups = []
  for spec in specs:
    name = f'{spec["model"]}, {spec["task"]}'
    found = points(axis, spec)
    group = bench.measure({f'{name}, {axis} {v}': p for v, p in found.items()})
    rows = [row for row in group['rows'] if 'milliseconds' in row]
    if len(rows) < 2:
      bench.say(f'{name}: fewer than two points could be measured')
      continue
    power = exponent(
        [row['facts']['macs'] * row['batch'] for row in rows],
        [row['milliseconds'] for row in rows],
    )
    bench.say(f'{name}: time grows as (multiply-accumulates)^{power:.2f}')
    groups.append({**group, 'axis': axis, 'exponent': power})
  if not groups:
    raise UserError('no model could be measured at two points')
  return groups


def depthwise(bench: Bench) -> list[dict[str, Any]]:
  """Measures depthwise convolutions with their gradients in both forms.

  The shapes are those of the first stage: of a large model at 224x224, with
  fewer images on a CPU, and of a compact model on CIFAR-10.
  """
  images = 8 if bench.facts['platform'] == 'cpu' else 128
  shapes = ((images, 56, 56, 128), (128, 8, 8, 64))
  groups = []
  for shape, side in itertools.product(shapes, (3, 5)):
    one = {'task': 'depthwise', 'shape': shape, 'kernel': side}
    name = f'depthwise {side}x{side} of {shape}'
    programs = {
        f'{name}, shifts': {**one, 'impl': 'shift'},
        f'{name}, feature_group_count': {**one, 'impl': 'conv'},
    }
    groups.append(bench.measure(programs))
  return groups


def _spec(args, name, task):
  """Returns the spec of a named model, for a task."""
  used = summarize.setting(name)
  return {
      'task': task,
      'model': name,
      'fields': {},
      'batch': 1 if task == 'latency' else args.batch,
      'image_size': args.image_size or used.image_size,
      'classes': args.classes or used.num_classes,
  }


def _parser():
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--train', action='store_true', help='the training step')
  add('--inference', action='store_true', help='logits (default: both)')
  add('--latency', action='store_true', help='logits of one image at a time')
  add('--model', nargs='+', default=['retention_compact'], metavar='NAME')
  add('--peers', nargs='+', default=[], metavar='PEER', help='see above')
  add('--batch', type=int, default=128, help='images per step')
  add(
      '--image-size', type=int, help="pixels (default: as in the model's paper)"
  )
  add('--classes', type=int, help="default: as in the model's paper")
  add(
      '--dtype',
      choices=('float32', 'bfloat16'),
      help='default: bfloat16; on a CPU, float32',
  )
  add('--threads', type=int, help='cores of each process')
  add('--repeats', type=int, default=5, help='rounds (default: 5)')
  add(
      '--seconds',
      type=float,
      default=3.0,
      help='per program and round, and for its warm-up (default: 3)',
  )
  add('--json', type=pathlib.Path, metavar='FILE', help='write the record')
  group = parser.add_argument_group('instead of models and their peers')
  add = group.add_mutually_exclusive_group().add_argument
  add(
      '--scaling',
      choices=('batch', 'resolution'),
      help='how time grows with batch size or image size',
  )
  add(
      '--depthwise',
      action='store_true',
      help='depthwise convolutions alone, in both implementations',
  )
  return parser


def _measure(args):
  """Returns the record of what the arguments ask for."""
  tasks = [task for task in _TASKS if getattr(args, task)]
  specs = [
      _spec(args, name, task)
      for name in args.model
      for task in tasks or ['train', 'inference']
  ]
  if args.peers and (args.scaling or args.depthwise):
    raise UserError('--scaling and --depthwise take no --peers')
  for peer in args.peers:
    peer_of(specs[0], peer)  # Mistakes stop before anything is measured.
  if args.json:
    files.check_can_write(args.json)
  bench = Bench(
      repeats=args.repeats,
      seconds=args.seconds,
      threads=args.threads,
      dtype=args.dtype,
      say=lambda line: print(line, flush=True),
  )
  with contextlib.closing(bench):
    about = machine(bench.facts, args.threads)
    if args.scaling:
      groups = grow(bench, args.scaling, specs)
    elif args.depthwise:
      groups = depthwise(bench)
    else:
      groups = beside_peers(bench, specs, args.peers)
  return {'machine': about, 'groups': groups}


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the tables; returns 1 if a program of ours could not be measured."""
  parser = _parser()
  args = parser.parse_args(argv)
  for name in ('batch', 'repeats'):
    if getattr(args, name) < 1:
      parser.error(f'--{name} must be at least 1')
  try:
    found = _measure(args)
  except UserError as error:
    parser.error(str(error))
  if args.json:
    args.json.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(args.json, found)
  rows = itertools.chain(*(group['rows'] for group in found['groups']))
  return int(any('not_measured' in r and 'peer' not in r for r in rows))


if __name__ == '__main__':
  sys.exit(main())
