"""The pictures of a setting: learning curves, and accuracy against cost."""

import pathlib

from gswinrmt_jax.experiments import charts, own_tables, paper_tables, switches
from gswinrmt_jax.experiments.statistics import Mean
from gswinrmt_jax.experiments.variants import Setting


def write(setting: Setting, out: pathlib.Path, stem: str) -> list[str]:
  """Draws what there is to draw of a setting.

  Args:
    setting: What was run.
    out: Folder of the pictures.
    stem: Part of their names.

  Returns:
    Their names.
  """
  title = f'{setting.title} ({_seeds(setting)})'
  names = [f'curves_{stem}.png']
  shown = setting.variants
  if len(shown) > charts.MANY:
    shown = [one for one in shown if ',' not in one.label]
  curves = [_curve(setting, one) for one in shown]
  charts.write_curves(out / names[0], curves, title)
  for base in switches.BASES:
    origin = setting.find(base)
    own = [one for one in setting.variants if one.base == base]
    if origin is None or len(own) < 2:
      continue
    names.append(f'curves_{stem}_{base}.png')
    charts.write_curves(
        out / names[-1],
        [_over(one, origin) for one in own if one is not origin],
        title,
        over=base,
    )
  divisor, unit = own_tables.macs_unit(setting)
  for figure, label, cost in (
      (lambda one: one.cost and one.cost.macs / divisor, 'macs', unit),
      (_latency, 'latency', 'latency (ms)'),
  ):
    points, accuracy = _points(setting, figure)
    if len(points) > 1:  # of one there is nothing to weigh up
      names.append(f'{label}_{stem}.png')
      charts.write_costs(
          out / names[-1], points, title, cost=cost, accuracy=accuracy
      )
  return names


def _seeds(setting):
  """Returns in words of how many runs the figures are."""
  counts = [len(one.runs) for one in setting.variants]
  fewest, most = min(counts), max(counts)
  if most == 1:
    return 'one seed'
  number = f'{most}' if fewest == most else f'{fewest} to {most}'
  return f'{number} seeds, with standard deviation'


def _curve(setting, variant):
  whole = variant.label in switches.BASES
  printed = {}
  if whole and setting.benchmark:
    model = setting.benchmark.models.get(variant.label)
    printed = model.curve if model else {}
  epochs = {
      epoch: variant.mean(own_tables.validation_at(epoch))
      for epoch in variant.epochs
  }
  return charts.Curve(variant.label, epochs, printed)


def _over(variant, origin):
  """Returns how far a variant is above another, the mean over seeds."""
  epochs = {}
  for epoch in variant.epochs:
    own, other = (
        one.by_seed(own_tables.validation_at(epoch))
        for one in (variant, origin)
    )
    found = Mean.of([own[seed] - other[seed] for seed in own.keys() & other])
    if found:
      epochs[epoch] = found
  return charts.Curve(variant.label, epochs)


def _points(setting, figure):
  """Returns the variants whose cost is known, and what their accuracy is.

  On test data if all variants have some, else on validation data at the last
  epoch that all runs have.
  """
  known = [one for one in setting.variants if figure(one) and one.epochs]
  if all(one.mean(paper_tables.test_accuracy) for one in known):
    name, accuracy = 'test accuracy (%)', paper_tables.test_accuracy
  else:
    epoch = min(run.epoch for one in known for run in one.runs if run.epoch)
    name = f'validation accuracy (%), epoch {epoch}'
    accuracy = own_tables.validation_at(epoch)
  points = [
      charts.Point(one.label, one.base, figure(one), one.mean(accuracy))
      for one in known
      if one.mean(accuracy)
  ]
  return points, name


def _latency(variant):
  found = variant.mean(lambda run: run.latency)
  return found and found.mean
