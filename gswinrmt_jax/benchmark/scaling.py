"""How time grows with batch, resolution and depth, beside what it should."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
from typing import Any

from gswinrmt_jax.models import named

AXES = ('batch', 'resolution', 'depth')
_RESOLUTIONS = (1, 9 / 7, 11 / 7, 13 / 7, 16 / 7)  # 224, 288, 352, 416, 512
_BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)
_DEPTHS = (0.5, 1, 1.5, 2)  # of the deepest stage


def points(axis: str, spec: Mapping[str, Any]) -> dict[float, dict[str, Any]]:
  """Returns specs by the value on the axis, beginning at the spec's own.

  Args:
    axis: One of `AXES`: images in a batch, pixels a side, blocks altogether.
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
  """Measured against multiply-accumulates, point by point.

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
    """`p` of the power law `time = a * macs^p` that fits best.

    The attention of the family costs `O(H W M C)`, with windows `M`: about as
    much a token whatever the size, so the multiply-accumulates grow as tokens,
    images and blocks do. 1 is time that grows with them; less, that part of it
    is spent otherwise.
    """
    x, y = (
        [math.log(value) for value in figures]
        for figures in (self.macs, self.milliseconds)
    )
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return over / sum((a - mean_x) ** 2 for a in x)

  def as_json(self) -> dict[str, Any]:
    """Returns it as JSON can hold it."""
    return {**dataclasses.asdict(self), 'exponent': self.exponent}


def draw(path: pathlib.Path, title: str, growths: Sequence[Growth]) -> None:
  """Draws time by value, and a line that grows as the multiply-accumulates."""
  # Imported here: most runs draw nothing.
  from matplotlib import figure

  fig = figure.Figure(figsize=(5 * len(growths), 4), layout='constrained')
  for axes, growth in zip(
      fig.subplots(1, len(growths), squeeze=False)[0], growths, strict=True
  ):
    last = growth.milliseconds[-1] / growth.macs[-1]
    axes.plot(
        growth.values,
        [last * macs for macs in growth.macs],
        '--',
        color='grey',
        label='as multiply-accumulates',
    )
    label = f'measured, exponent {growth.exponent:.2f}'
    axes.plot(growth.values, growth.milliseconds, 'o-', label=label)
    axes.set_xlabel(
        {'batch': 'images', 'resolution': 'pixels a side', 'depth': 'blocks'}[
            growth.axis
        ]
    )
    axes.set_ylabel('ms a call')
    axes.set_ylim(bottom=0)
    axes.legend()
  fig.suptitle(title)
  fig.savefig(path, dpi=120)
