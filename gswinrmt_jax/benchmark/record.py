"""What was measured: as JSON, and as a table of a terminal and of documents."""

from collections.abc import Callable, Mapping, Sequence
import datetime
import os
import pathlib
import platform
import re
import sys
from typing import Any

import gswinrmt_jax
from gswinrmt_jax.benchmark import measure, timing

Row = Mapping[str, Any]

_VARIABLES = ('XLA_FLAGS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS')
_HEAD = (
    '',
    'ms',
    '±',
    'img/s',
    'ours is',
    'MFU',
    'of roofline',
    'peak GB',
)


def machine(facts: Mapping[str, Any], threads: int | None) -> dict[str, Any]:
  """Returns where this ran, and by which command."""
  return {
      'command': ' '.join(['gswinrmt', *sys.argv[1:]]),
      'measured': datetime.datetime.now(datetime.UTC).isoformat('T', 'seconds'),
      'gswinrmt_jax': gswinrmt_jax.__version__,
      'platform': facts['platform'],
      'device': facts['device'],
      'processor': _processor(),
      'cores': len(os.sched_getaffinity(0))
      if hasattr(os, 'sched_getaffinity')
      else os.cpu_count(),
      'threads': threads,
      'load_before': os.getloadavg()[0],
      'python': platform.python_version(),
      'versions': facts['versions'],
      'environment': {
          name: os.environ[name] for name in _VARIABLES if name in os.environ
      },
  }


def rows(
    outcomes: Sequence[measure.Measured], rates: Mapping[str, float]
) -> list[dict[str, Any]]:
  """Returns the arms of a group; the first is what the others are held to.

  - 'ours_is': how many times as fast the first is, in images a second, by the
    median over the rounds.
  - 'mfu': FLOP of the model's products (two a multiply-accumulate, three
    passes in training) over the step's time and the measured rate.
  - 'of_roofline': the step's time over `FLOP / rate + ideal bytes / rate`;
    training alone, by `ideal_bytes`.

  Args:
    outcomes: Of `Bench.measure`.
    rates: Of `Bench.rates`.
  """
  return [_row(outcome, outcomes[0], rates) for outcome in outcomes]


def _row(outcome, first, rates):
  row = {'arm': outcome.name, **outcome.spec}
  taken = outcome.taken
  if taken is None:
    return {**row, 'not_measured': outcome.error}
  facts = outcome.facts
  size, of = outcome.peak
  row |= {
      'milliseconds': 1e3 * taken.median,
      'spread': taken.spread,
      'repeats_ms': [1e3 * seconds for seconds in taken.seconds],
      'calls': taken.calls,
      'images_per_second': facts['images'] / taken.median,
      'ours_is': times_as_fast(first, outcome),
      'peak_bytes': size,
      'peak_of': of,
  }
  if 'flops' in facts:
    least = facts['flops'] / rates['flops']
    row['mfu'] = least / taken.median
    if facts.get('ideal_bytes'):
      least += facts['ideal_bytes'] / rates['bytes']
      row['of_roofline'] = taken.median / least
  return {**row, 'facts': facts}


def times_as_fast(
    ours: measure.Measured, other: measure.Measured
) -> float | None:
  """Returns how many times as fast, in images a second, as the other.

  By the median over the rounds; None if one of them was not measured.
  """
  if ours.taken is None or other.taken is None:
    return None
  images = ours.facts['images'] / other.facts['images']
  return images * timing.times_as_fast(ours.taken, other.taken)


def table(found: Sequence[Row]) -> str:
  """Returns rows as a table of Markdown, reasons below it."""
  return lay_out(found, _HEAD, _cells)


def lay_out(
    found: Sequence[Row],
    head: Sequence[str],
    cells_of: Callable[[Row], Sequence[str]],
) -> str:
  """Returns rows as a table of these cells, reasons below it."""
  cells = [head] + [cells_of(row) for row in found if 'milliseconds' in row]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  lines = [_line(row, widths) for row in cells]
  lines.insert(1, _line(['-' * width for width in widths], widths))
  lines += [
      f'{row["arm"]}: not measured: {row["not_measured"]}'
      for row in found
      if 'not_measured' in row
  ]
  return '\n'.join(lines)


def _cells(row):
  return (
      row['arm'],
      f'{row["milliseconds"]:.4g}',
      f'{row["spread"]:.1%}',
      f'{row["images_per_second"]:.4g}',
      f'{row["ours_is"]:.2f}x' if row['ours_is'] else '',
      f'{row["mfu"]:.1%}' if 'mfu' in row else '',
      f'{row["of_roofline"]:.2f}x' if 'of_roofline' in row else '',
      peak(row),
  )


def peak(row: Row) -> str:
  """Returns the cell of a row's peak memory, in GB."""
  size, of = row['peak_bytes'], row['peak_of']
  return f'{size / 1e9:.2f} ({of})' if size else of


def _line(cells, widths):
  padded = [
      cell.ljust(width) if not index else cell.rjust(width)
      for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
  ]
  return f'| {" | ".join(padded)} |'


def ceilings(rates: Mapping[str, float]) -> str:
  """Returns the measured rates as a line."""
  return (
      f'measured rates: products {rates["flops"] / 1e12:.4g} TFLOP/s, copy '
      f'{rates["bytes"] / 1e9:.4g} GB/s'
  )


def default_path(words: Sequence[str], device: str) -> pathlib.Path:
  """Returns `benchmarks/results/WORDS_DEVICE.json`."""
  name = '_'.join([*words, device])
  name = re.sub(r'\W+', '_', name.lower()).strip('_')
  return pathlib.Path('benchmarks', 'results', f'{name}.json')


def _processor():
  """Returns what Linux calls the processor, '' elsewhere."""
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text()
  except OSError:
    return platform.processor()
  found = re.search(r'^model name\s*: (.*)$', text, re.MULTILINE)
  return found[1] if found else platform.processor()
