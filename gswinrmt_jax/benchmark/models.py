"""What is timed together: models and peers, runs, sizes, convolutions."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import pathlib
from typing import Any

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.benchmark import measure
from gswinrmt_jax.benchmark.worker import Spec
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import named
from gswinrmt_jax.runs import run_folder
from gswinrmt_jax.weights import load

_TWINS = ('eager', 'compile')
_TOGETHER = 8  # runs whose processes are alive at once
_RESOLUTIONS = (1, 9 / 7, 11 / 7, 13 / 7, 16 / 7)  # 224, 288, 352, 416, 512
_BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
_DEPTHS = (0.5, 1, 1.5, 2)  # of the deepest stage


def spec(model: str, task: str, **shape: int) -> dict[str, Any]:
  """Returns the spec of a named model for a task of `programs`.

  The shape is 'batch', 'image_size' and 'classes'; task 'latency' takes one
  image, whatever the batch is.
  """
  found = {'task': task, 'model': model, 'fields': {}, **shape}
  return {**found, 'batch': 1} if task == 'latency' else found


def beside_peers(
    bench: measure.Bench, specs: Iterable[Spec], peers: Sequence[str]
) -> dict[str, Any]:
  """Measures each model together with its peers.

  Peers are 'plain', the same model without faster implementations; 'eager' and
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
  for row in itertools.chain(*(group['rows'] for group in groups)):
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
  if card.segmenter is not None:
    raise UserError(f'{folder}: latency is measured for classifiers only')
  height, width = card.image_size
  if height != width:
    raise UserError(
        f'{folder}: latency is measured on square images, not {height}x{width}'
    )
  shape = {'image_size': height, 'classes': len(card.class_names)}
  return {**spec(card.name, 'latency', **shape), 'fields': card.fields}


def points(axis: str, spec: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
  """Returns specs of a named model by their value on an axis.

  The axis is 'batch' (images), 'resolution' (pixels a side) or 'depth'
  (blocks).
  """
  if axis == 'batch':
    values = {max(1, round(spec['batch'] * factor)) for factor in _BATCHES}
    return {value: {**spec, 'batch': value} for value in sorted(values)}
  if axis == 'resolution':
    sizes = [4 * round(spec['image_size'] * f / 4) for f in _RESOLUTIONS]
    return {size: {**spec, 'image_size': size} for size in sizes}
  depths = named.MODELS[spec['model']].depths
  deepest = depths.index(max(depths))
  found = {}
  for factor in _DEPTHS:
    changed = list(depths)
    changed[deepest] = max(1, round(depths[deepest] * factor))
    found[sum(changed)] = {**spec, 'fields': {'depths': changed}}
  return found


def exponent(macs: Sequence[float], milliseconds: Sequence[float]) -> float:
  """Returns `p` of the best fit `time = a * macs^p`.

  Attention within windows of M tokens costs `O(H W M C)`, so the
  multiply-accumulates grow linearly with tokens, images and blocks. At p = 1,
  the time is proportional to them; below 1, part of the time is overhead.
  """
  return float(np.polyfit(np.log(macs), np.log(milliseconds), 1)[0])


def grow(
    bench: measure.Bench, axis: str, specs: Iterable[Spec]
) -> dict[str, Any]:
  """Measures how the time of models grows along an axis.

  Raises:
    UserError: If fewer than two points of a model can be measured.
  """
  groups = []
  for one in specs:
    name = f'{one["model"]}, {one["task"]}'
    group = bench.measure(
        {
            f'{name}, {axis} {value}': point
            for value, point in points(axis, one).items()
        }
    )
    rows = [row for row in group['rows'] if 'milliseconds' in row]
    if len(rows) < 2:
      raise UserError(f'{name}: fewer than two points could be measured')
    found = exponent(
        [row['facts']['macs'] * row['batch'] for row in rows],
        [row['milliseconds'] for row in rows],
    )
    bench.say(f'{name}: time grows as (multiply-accumulates)^{found:.2f}')
    groups.append({**group, 'axis': axis, 'exponent': found})
  return {'groups': groups}


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
