"""Measured programs as JSON and as a table in Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import datetime
import os
import pathlib
import platform
import re
import sys
from typing import Any

import gswinrmt_jax
from gswinrmt_jax.benchmark import measure
from gswinrmt_jax.benchmark.worker import Spec

Row = Mapping[str, Any]

_VARIABLES = ('XLA_FLAGS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS')
_HEAD = ('', 'ms', '±', 'img/s', 'relative', 'MFU', 'peak GB')


def machine(facts: Mapping[str, Any], threads: int | None) -> dict[str, Any]:
  """Returns where this runs, and by which command."""
  return {
      'command': ' '.join(['gswinrmt', *sys.argv[1:]]),
      'measured': datetime.datetime.now(datetime.UTC).isoformat('T', 'seconds'),
      'gswinrmt_jax': gswinrmt_jax.__version__,
      'platform': facts['platform'],
      'device': facts['device'],
      'processor': _processor(),
      'cores': os.cpu_count(),
      'threads': threads,
      'load_before': os.getloadavg()[0],
      'versions': facts['versions'],
      'environment': {
          name: value
          for name, value in os.environ.items()
          if name in _VARIABLES or name.startswith('MALLOC_')
      },
  }


def _processor():
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text()
  except OSError:
    text = ''
  found = re.search(r'^model name\s*: (.*)$', text, re.MULTILINE)
  return found[1] if found else platform.processor()


def rows(
    outcomes: Sequence[measure.Measured], rates: Mapping[str, float]
) -> list[dict[str, Any]]:
  """Returns one row per program.

  - 'relative': images per second over those of the first program: the median
    over the rounds.
  - 'mfu': FLOP of the model's products (two per multiply-accumulate, three
    passes in training) per second, over the measured matmul rate.

  Args:
    outcomes: From `Bench.measure`.
    rates: From `Bench.rates`.
  """
  return [_row(outcome, outcomes[0], rates) for outcome in outcomes]


def _row(outcome, first, rates):
  row = {'program': outcome.name, **outcome.spec}
  timing, facts = outcome.timing, outcome.facts
  if timing is None:
    return {**row, 'not_measured': outcome.error}
  size, owner = outcome.peak
  row |= {
      'milliseconds': 1e3 * timing.median,
      'spread': timing.spread,
      'repeats_ms': [1e3 * seconds for seconds in timing.seconds],
      'calls': timing.calls,
      'images_per_second': facts['images'] / timing.median,
      'relative': outcome.times_as_fast_as(first),
      'peak_bytes': size,
      'peak_of': owner,
  }
  if 'flops' in facts:
    row['mfu'] = facts['flops'] / timing.median / rates['flops']
  return {**row, 'facts': facts}


def table(found: Sequence[Row]) -> str:
  """Returns rows as a Markdown table, with a line per failure below."""
  measured = [_cells(row) for row in found if 'milliseconds' in row]
  failures = [
      f'{row["program"]}: not measured: {row["not_measured"]}'
      for row in found
      if 'not_measured' in row
  ]
  return '\n'.join([lay_out(_HEAD, measured), *failures])


def _cells(row):
  size, owner = row['peak_bytes'], row['peak_of']
  return (
      row['program'],
      f'{row["milliseconds"]:.4g}',
      f'{row["spread"]:.1%}',
      f'{row["images_per_second"]:.4g}',
      f'{row["relative"]:.3f}' if row['relative'] else '',
      f'{row["mfu"]:.1%}' if 'mfu' in row else '',
      f'{size / 1e9:.2f} ({owner})' if size else owner,
  )


def lay_out(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
  """Returns a Markdown table with columns of one width, aligned right."""
  cells = [head, *cells]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  cells.insert(1, ['-' * width for width in widths])
  lines = []
  for first, *rest in cells:
    padded = [first.ljust(widths[0])]
    padded += [c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)]
    lines.append(f'| {" | ".join(padded)} |')
  return '\n'.join(lines)


def group(
    bench: measure.Bench,
    specs: Mapping[str, Spec],
    say: Callable[[str], None],
) -> dict[str, Any]:
  """Measures programs in turn, says their table and returns their record."""
  outcomes, timings = bench.measure(specs)
  rates = bench.rates(timings)
  found = rows(outcomes, rates)
  say(
      f'\n{table(found)}\nmeasured rates: products '
      f'{rates["flops"] / 1e12:.4g} TFLOP/s, copy {rates["bytes"] / 1e9:.4g} '
      'GB/s\n'
  )
  return {
      'rows': found,
      'rates': rates,
      'rates_spread': {name: one.spread for name, one in timings.items()},
  }


def default_path(words: Sequence[str], device: str) -> pathlib.Path:
  """Returns `benchmarks/results/WORDS_DEVICE.json`."""
  name = re.sub(r'\W+', '_', '_'.join([*words, device]).lower()).strip('_')
  return pathlib.Path('benchmarks', 'results', f'{name}.json')
