"""The record of a measurement: its machine, its file and its table."""

from collections.abc import Iterable, Mapping, Sequence
import datetime
import os
import pathlib
import platform
import re
import sys
from typing import Any

import gswinrmt_jax

_VARIABLES = ('XLA_FLAGS', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS')
_HEAD = ('', 'ms', '±', 'img/s', 'relative', 'MFU', 'peak GB')


def machine(facts: Mapping[str, Any], threads: int | None) -> dict[str, Any]:
  """Returns the command, the machine and its software, as JSON values."""
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


def table(found: Sequence[Mapping[str, Any]]) -> str:
  """Returns a Markdown table of programs, followed by a line per failure."""
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
  """Returns a Markdown table with padded cells, right-aligned but the first."""
  cells = [head, *cells]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  cells.insert(1, ['-' * width for width in widths])
  lines = []
  for first, *rest in cells:
    padded = [first.ljust(widths[0])]
    padded += [c.rjust(w) for c, w in zip(rest, widths[1:], strict=True)]
    lines.append(f'| {" | ".join(padded)} |')
  return '\n'.join(lines)


def default_path(words: Sequence[str], device: str) -> pathlib.Path:
  """Returns `benchmarks/results/WORDS_DEVICE.json`."""
  name = re.sub(r'\W+', '_', '_'.join([*words, device]).lower()).strip('_')
  return pathlib.Path('benchmarks', 'results', f'{name}.json')
