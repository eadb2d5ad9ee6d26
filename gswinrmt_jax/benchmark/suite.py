"""What is measured: models beside their peers, growth, convolutions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import pathlib
import tempfile
from typing import Any

from gswinrmt_jax.benchmark import feeding, measure, record, scaling
from gswinrmt_jax.errors import UserError

Spec = dict[str, Any]
Say = Callable[[str], None]

TWINS = ('eager', 'compile')
_OURS = {'plain': {'plain': True}}
_TOGETHER = 8  # runs that are alive at once


def model_spec(
    model: str, task: str, *, batch: int, image_size: int, classes: int
) -> Spec:
  """Returns the spec of a named model; latency is that of one image."""
  return {
      'task': task,
      'model': model,
      'fields': {},
      'batch': 1 if task == 'latency' else batch,
      'image_size': image_size,
      'classes': classes,
  }


def models(
    bench: measure.Bench,
    specs: Iterable[Spec],
    peers: Sequence[str],
    say: Say,
) -> dict[str, Any]:
  """Measures each spec beside its peers.

  Args:
    bench: Where.
    specs: Of models.
    peers: 'plain', the same on XLA's own convolutions; 'eager' and 'compile',
      PyTorch's twin; else models of timm.
    say: Told of tables.

  Returns:
    A list of groups, each with rows and rates.
  """
  groups = []
  for spec in specs:
    name = f'{spec["model"]}, {spec["task"]}'
    arms = {name: spec}
    for peer in peers:
      other = _OURS.get(peer) or {'peer': peer}
      arms[f'{name}: {peer}' if peer in (*_OURS, *TWINS) else peer] = {
          **spec,
          **other,
      }
    groups.append(_group(bench, arms, say))
  return {'groups': groups}


def runs(
    bench: measure.Bench, specs: Mapping[str, Spec], say: Say
) -> dict[str, Any]:
  """Measures the specs of runs, by folder, in turn with each other.

  Few at a time, since each is a process that stays until its group is done.

  Returns:
    A list of groups, as `models` does.
  """
  names = list(specs)
  groups = [
      {name: specs[name] for name in names[start : start + _TOGETHER]}
      for start in range(0, len(names), _TOGETHER)
  ]
  return {'groups': [_group(bench, group, say) for group in groups]}


def depthwise(bench: measure.Bench, say: Say) -> dict[str, Any]:
  """Measures depthwise convolutions, forward and backward, in both forms.

  Maps are those of bar 16, of a large model's first stage and of CIFAR-10's. On
  an accelerator the first is that of a whole batch, too.
  """
  images = 8 if bench.platform == 'cpu' else 128
  groups = []
  for shape in ((images, 56, 56, 128), (128, 8, 8, 64)):
    for side in (3, 5):
      spec = {'task': 'depthwise', 'shape': shape, 'kernel': side}
      name = f'depthwise {side}x{side} of {shape}'
      arms = {
          f'{name}, shifts': {**spec, 'impl': 'shift'},
          f'{name}, feature_group_count': {**spec, 'impl': 'conv'},
      }
      groups.append(_group(bench, arms, say))
  return {'groups': groups}


def growth(
    bench: measure.Bench,
    axis: str,
    specs: Iterable[Spec],
    picture: pathlib.Path,
    say: Say,
) -> dict[str, Any]:
  """Measures how the time of models grows along an axis, and draws it."""
  groups, growths, names = [], [], []
  for spec in specs:
    points = scaling.points(axis, spec)
    name = f'{spec["model"]}, {spec["task"]}'
    arms = {f'{name}, {axis} {value}': one for value, one in points.items()}
    group = _group(bench, arms, say)
    rows = [row for row in group['rows'] if 'milliseconds' in row]
    if len(rows) < 2:
      raise UserError(f'{name}: fewer than two points could be measured')
    curve = scaling.Growth(
        axis,
        tuple(
            value
            for value, row in zip(points, group['rows'], strict=True)
            if 'milliseconds' in row
        ),
        tuple(row['milliseconds'] for row in rows),
        tuple(row['facts']['macs'] * row['batch'] for row in rows),
    )
    say(f'{name}: time grows as (multiply-accumulates)^{curve.exponent:.2f}')
    groups.append({**group, 'growth': curve.as_json()})
    growths.append(curve)
    names.append(name)
  picture.parent.mkdir(parents=True, exist_ok=True)
  scaling.draw(picture, '; '.join(names), growths)
  say(f'wrote {picture}')
  return {'groups': groups}


def pipeline(
    bench: measure.Bench,
    specs: Iterable[Spec],
    fed: feeding.Feeding,
    say: Say,
) -> dict[str, Any]:
  """Measures training, each model without a feed and with several.

  Returns:
    A list of groups, as `models` does, with the rows of `feeding.rows`.
  """
  groups = []
  for spec in specs:
    with tempfile.TemporaryDirectory(prefix='gswinrmt_') as folder:
      fed.prepare(spec, pathlib.Path(folder))
      arms = fed.arms(spec, pathlib.Path(folder))
      groups.append(_group(bench, arms, say, told_by=feeding))
  return {'groups': groups}


def _group(
    bench: measure.Bench, arms: Mapping[str, Spec], say: Say, told_by=record
) -> dict[str, Any]:
  """Measures arms; `told_by` makes rows and table of it."""
  outcomes, timings = bench.measure(arms)
  rates = bench.rates(timings)
  rows = told_by.rows(outcomes, rates)
  say(f'\n{told_by.table(rows)}\n{record.ceilings(rates)}\n')
  return {
      'rows': rows,
      'rates': rates,
      'rates_spread': {name: one.spread for name, one in timings.items()},
  }
