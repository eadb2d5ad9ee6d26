"""Measures how time grows with batch, resolution and depth."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gswinrmt_jax.benchmark import measure
from gswinrmt_jax.benchmark.worker import Spec
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import named

_RESOLUTIONS = (1, 9 / 7, 11 / 7, 13 / 7, 16 / 7)  # 224, 288, 352, 416, 512
_BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
_DEPTHS = (0.5, 1, 1.5, 2)  # of the deepest stage


def points(axis: str, spec: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
  """Returns specs by their value on the axis.

  Args:
    axis: 'batch' (images), 'resolution' (pixels a side) or 'depth' (blocks).
    spec: Spec of a model.
  """
  if axis == 'batch':
    values = {max(1, round(spec['batch'] * factor)) for factor in _BATCHES}
    return {value: {**spec, 'batch': value} for value in sorted(values)}
  if axis == 'resolution':
    sizes = [4 * round(spec['image_size'] * f / 4) for f in _RESOLUTIONS]
    return {size: {**spec, 'image_size': size} for size in sizes}
  depths = spec['fields'].get('depths') or named.MODELS[spec['model']].depths
  deepest = depths.index(max(depths))
  found = {}
  for factor in _DEPTHS:
    changed = list(depths)
    changed[deepest] = max(1, round(depths[deepest] * factor))
    fields = {**spec['fields'], 'depths': changed}
    found[sum(changed)] = {**spec, 'fields': fields}
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
  for spec in specs:
    name = f'{spec["model"]}, {spec["task"]}'
    programs = {
        f'{name}, {axis} {value}': one
        for value, one in points(axis, spec).items()
    }
    group = bench.measure(programs)
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
