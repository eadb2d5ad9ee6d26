"""Collects the results of a run in one JSON file, for results/.

  python experiments/collect.py RUN > results/NAME.json

The file holds the recipe, the environment (device, versions, commit), the
metrics of every epoch, the summary if the run has ended, and the image size and
classes. Paths of run and data are left out; of the weights that the run started
from, there is the name and a checksum of the path.
`report.py` reads such files like run folders.
"""

import argparse
from collections.abc import Iterable, Iterator
import json
import pathlib
from typing import Any
import zlib

from gswinrmt_jax.runs import metrics_log

_PLACES = ('--workdir', '--config.data.dir')


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
    program, *words = start['command']
    start['command'] = [pathlib.Path(program).name, *_without_places(words)]
    for name, value in start.get('variables', {}).items():
      if value.startswith('/'):  # such as LD_PRELOAD
        start['variables'][name] = pathlib.Path(value).name
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


def _without_places(words: Iterable[str]) -> Iterator[str]:
  """Yields a command's words but for options with the paths of the run."""
  named = {
      '--config.data.name': _name,
      '--config.data.label_maps': _name,
      '--config.init_from': _origin,
  }
  rest = iter(words)
  for word in rest:
    name, given, value = word.partition('=')
    name = f'--{name.lstrip("-")}'  # One dash is enough for `train`.
    if name in named:
      value = value if given else next(rest, '')
      yield f'{name}={named[name](value)}'
    elif name in _PLACES:
      if not given:
        next(rest, None)  # its value, after a space
    elif value.startswith('/'):  # such as --config=/place/cifar10_rmt.py
      yield f'{name}={_name(value)}'
    else:
      yield _name(word) if word.startswith('/') else word


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('run', metavar='RUN', type=pathlib.Path)
  print(json.dumps(collect(parser.parse_args().run), indent=1))
