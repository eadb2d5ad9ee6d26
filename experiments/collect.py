"""Collects the results of a run in one JSON file, for results/.

  python experiments/collect.py RUN > results/NAME.json

The file holds the recipe, the environment (device, versions, commit), the
metrics of every epoch, the summary if the run has ended, and the image size and
classes. Of the paths of run and data, there is the name alone; of the weights
that the run started from, a checksum of the path, too. Commands keep relative
paths. `report.py` reads such files like run folders.
"""

import argparse
import json
import pathlib
import re
from typing import Any
import zlib

from gswinrmt_jax.runs import metrics_log


def collect(run: pathlib.Path) -> dict:
  """Returns the contents of the file as a dictionary."""
  if not (run / 'config.json').exists():
    raise SystemExit(f'{run} is not a run folder: it has no config.json')

  def read(name):
    path = run / name
    return json.loads(path.read_text()) if path.exists() else None

  config = read('config.json')
  starts = read('environment.json') or []  # none: interrupted at its start
  for start in starts:
    start['command'] = [*map(_without_folders, start['command'])]
    for name, value in start.get('variables', {}).items():
      start['variables'][name] = _without_folders(value)  # such as LD_PRELOAD
  # Earlier versions did not record the recipe of a start.
  for recipe in (config, *(x['config'] for x in starts if 'config' in x)):
    leave_out_places(recipe)
  entries, summary = metrics_log.read_metrics(run), read('summary.json')
  if summary and 'data' in summary:
    summary['data'] = _name(summary['data'])
  return {
      'config': config,
      'environment': starts,
      'epochs': [entry for entry in entries if entry['kind'] == 'epoch'],
      'summary': summary,
      'data': read('data.json'),
  }


def leave_out_places(recipe: dict[str, Any]) -> None:
  """Replaces the paths in a recipe by names; once more changes nothing."""
  data = recipe['data']
  data.pop('dir', None)
  # Earlier versions lack some fields.
  for name in ('name', 'label_maps'):
    data[name] = _name(data.get(name, ''))
  recipe['init_from'] = _origin(recipe.get('init_from', ''))


def _name(place: str) -> str:
  """Returns a name, without the folders of a path."""
  return pathlib.PurePath(place).name


def _origin(place: str) -> str:
  """Returns the name of weights; of a path, with its checksum.

  Many weights have one name, such as `model.safetensors`.
  """
  if place.startswith('hf-hub:') or '/' not in place:
    return place
  return f'{_name(place)}@{zlib.crc32(place.encode()):08x}'


def _without_folders(word: str) -> str:
  """Returns a word of a command without the folders of absolute paths."""
  return re.sub(r'(^|=)/([^=]*/)?(?=[^/\s])', r'\1', word)


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('run', metavar='RUN', type=pathlib.Path)
  print(json.dumps(collect(parser.parse_args().run), indent=1))
