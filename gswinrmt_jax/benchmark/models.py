"""Times groups of programs together: models, runs, convolutions."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import pathlib
from typing import Any

from gswinrmt_jax import files
from gswinrmt_jax.benchmark import measure
from gswinrmt_jax.benchmark.worker import Spec
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import run_folder
from gswinrmt_jax.weights import load

_TWINS = ('eager', 'compile')
_TOGETHER = 8  # runs whose processes are alive at once


def spec(model: str, task: str, **shape: int) -> dict[str, Any]:
  """Returns the spec of a named model; latency is that of one image.

  Args:
    model: Name of the model.
    task: A task of `programs`.
    **shape: 'batch', 'image_size' and 'classes'.
  """
  found = {'task': task, 'model': model, 'fields': {}, **shape}
  return {**found, 'batch': 1} if task == 'latency' else found


def beside_peers(
    bench: measure.Bench, specs: Iterable[Spec], peers: Sequence[str]
) -> dict[str, Any]:
  """Measures each model together with its peers.

  Args:
    bench: Times the programs.
    specs: Specs of models.
    peers: 'plain', the same model without faster implementations; 'eager' and
      'compile', its twin in PyTorch; any other name, a model of timm.
  """
  groups = []
  for one in specs:
    name = f'{one["model"]}, {one["task"]}'
    programs = {name: one}
    for peer in peers:
      if peer == 'plain':
        programs[f'{name}: plain'] = {**one, 'plain': True}
      else:
        title = f'{name}: {peer}' if peer in _TWINS else peer
        programs[title] = {**one, 'peer': peer}
    groups.append(bench.measure(programs))
  return {'groups': groups}


def runs(
    bench: measure.Bench,
    folders: Iterable[pathlib.Path],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
  """Measures the latency of runs' models and writes their `latency.json`.

  Raises:
    UserError: If a folder is not a run or its model cannot be measured.
  """
  specs = {str(folder): _run_spec(folder) for folder in folders}
  names, groups = list(specs), []
  for start in range(0, len(names), _TOGETHER):
    some = names[start : start + _TOGETHER]
    groups.append(bench.measure({name: specs[name] for name in some}))
  for row in (row for group in groups for row in group['rows']):
    path = pathlib.Path(row['program'], 'latency.json')
    if 'not_measured' in row:
      raise UserError(f'{path.parent}: not measured: {row["not_measured"]}')
    found = {name: row[name] for name in ('milliseconds', 'spread', 'dtype')}
    found |= {name: machine[name] for name in ('device', 'threads', 'versions')}
    files.write_json(path, found)
    bench.say(f'wrote {path}')
  return {'groups': groups}


def _run_spec(folder):
  """Returns a run's spec; weights do not affect latency and are not read."""
  card = load.run_card(folder, run_folder.load_config(folder))
  height, width = card.image_size
  if height != width:
    raise UserError(
        f'{folder}: latency is measured on square images, not {height}x{width}'
    )
  shape = {'image_size': height, 'classes': len(card.class_names)}
  return {**spec(card.name, 'latency', **shape), 'fields': card.fields}


def depthwise(bench: measure.Bench) -> dict[str, Any]:
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
  return {'groups': groups}
