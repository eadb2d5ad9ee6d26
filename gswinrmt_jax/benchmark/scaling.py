"""How time grows with batch, resolution and depth."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import numpy as np

from gswinrmt_jax.benchmark import measure, record
from gswinrmt_jax.benchmark.worker import Spec
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import named

# What is varied, and its unit.
AXES = {'batch': 'images', 'resolution': 'pixels a side', 'depth': 'blocks'}
_RESOLUTIONS = (1, 9 / 7, 11 / 7, 13 / 7, 16 / 7)  # 224, 288, 352, 416, 512
_BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
_DEPTHS = (0.5, 1, 1.5, 2)  # of the deepest stage


def points(axis: str, spec: Mapping[str, Any]) -> dict[float, dict[str, Any]]:
  """Returns specs by their value on the axis.

  Args:
    axis: One of `AXES`.
    spec: Of a model.
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


@dataclasses.dataclass(frozen=True)
class Growth:
  """Time against multiply-accumulates, point by point.

  Attributes:
    axis: What was varied.
    values: On the axis.
    milliseconds: Of a call.
    macs: Multiply-accumulates of a call.
  """

  axis: str
  values: tuple[float, ...]
  milliseconds: tuple[float, ...]
  macs: tuple[float, ...]

  @property
  def exponent(self) -> float:
    """`p` of the best fit `time = a * macs^p`.

    Attention within windows of M tokens costs `O(H W M C)`, so the
    multiply-accumulates grow linearly with tokens, images and blocks. At 1 the
    time grows with them; below 1, part of the time is something else.
    """
    return float(np.polyfit(np.log(self.macs), np.log(self.milliseconds), 1)[0])


def grow(
    bench: measure.Bench,
    axis: str,
    specs: Iterable[Spec],
    picture: pathlib.Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
  """Measures how the time of models grows along an axis, and plots it.

  Raises:
    UserError: If fewer than two points of a model can be measured.
  """
  groups, growths = [], {}
  for spec in specs:
    at = points(axis, spec)
    name = f'{spec["model"]}, {spec["task"]}'
    programs = {f'{name}, {axis} {value}': one for value, one in at.items()}
    group = record.group(bench, programs, say)
    measured = [
        (value, row['milliseconds'], row['facts']['macs'] * row['batch'])
        for value, row in zip(at, group['rows'], strict=True)
        if 'milliseconds' in row
    ]
    if len(measured) < 2:
      raise UserError(f'{name}: fewer than two points could be measured')
    growth = Growth(axis, *zip(*measured, strict=True))
    say(f'{name}: time grows as (multiply-accumulates)^{growth.exponent:.2f}')
    fields = {**dataclasses.asdict(growth), 'exponent': growth.exponent}
    groups.append({**group, 'growth': fields})
    growths[name] = growth
  picture.parent.mkdir(parents=True, exist_ok=True)
  plot(picture, '; '.join(growths), list(growths.values()))
  say(f'wrote {picture}')
  return {'groups': groups}


def plot(path: pathlib.Path, title: str, growths: Sequence[Growth]) -> None:
  """Plots time, and a line proportional to the multiply-accumulates."""
  from matplotlib import figure  # most benchmarks plot nothing

  fig = figure.Figure(figsize=(5 * len(growths), 4), layout='constrained')
  plots = fig.subplots(1, len(growths), squeeze=False)[0]
  for axes, growth in zip(plots, growths, strict=True):
    per_mac = growth.milliseconds[-1] / growth.macs[-1]
    proportional = [per_mac * macs for macs in growth.macs]
    label = 'as multiply-accumulates'
    axes.plot(growth.values, proportional, '--', color='grey', label=label)
    label = f'measured, exponent {growth.exponent:.2f}'
    axes.plot(growth.values, growth.milliseconds, 'o-', label=label)
    axes.set(xlabel=AXES[growth.axis], ylabel='ms a call')
    axes.set_ylim(bottom=0)
    axes.legend()
  fig.suptitle(title)
  fig.savefig(path, dpi=120)
