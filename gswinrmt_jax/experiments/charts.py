"""The pictures of a report: learning curves, and accuracy against cost."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import pathlib

from gswinrmt_jax import files
from gswinrmt_jax.experiments import switches, tables
from gswinrmt_jax.experiments.results import Setting, validation_at
from gswinrmt_jax.experiments.statistics import Mean

MANY = 12  # variants that one picture can name
_FEW = 6  # spreads that can be shaded over each other
_MARKERS = 'os^Dv*P'
_DOTS = 20  # epochs that can be told apart on a line
# Colours of the whole models, distinct to all eyes.
_COLORS = {
    'rmt': '#0072b2',
    'retention': '#d55e00',
    'swat': '#009e73',
    'bare': '#777777',
}


@dataclasses.dataclass(frozen=True)
class Curve:
  """One line of learning curves.

  Attributes:
    label: In the legend; a base has a colour of its own.
    epochs: Validation accuracy by epoch, over the seeds.
    printed: The paper's points, %, in the same colour.
  """

  label: str
  epochs: Mapping[int, Mean]
  printed: Mapping[int, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Point:
  """One variant in a picture of accuracy against cost."""

  label: str
  base: str
  cost: float
  accuracy: Mean


def draw(setting: Setting, out: pathlib.Path, stem: str) -> list[str]:
  """Draws a setting's learning curves, and its accuracy against its costs.

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
  if len(shown) > MANY:
    shown = [one for one in shown if ',' not in one.label]
  draw_curves(out / names[0], [_curve(setting, one) for one in shown], title)
  for base in switches.BASES:
    whole = setting.find(base)
    changed = [one for one in setting.variants if one.base == base]
    changed = [one for one in changed if one is not whole]
    if whole and changed:
      names.append(f'curves_{stem}_{base}.png')
      curves = [_gain(one, whole) for one in changed]
      draw_curves(out / names[-1], curves, title, over=base)
  divisor, unit = tables.macs_unit(setting)
  for name, label, cost in (
      ('macs', unit, lambda one: one.cost and one.cost.macs / divisor),
      ('latency', 'latency (ms)', _latency),
  ):
    points, accuracy = _points(setting, cost)
    if len(points) > 1:
      names.append(f'{name}_{stem}.png')
      draw_costs(out / names[-1], points, title, cost=label, accuracy=accuracy)
  return names


def _seeds(setting):
  counts = [len(one.runs) for one in setting.variants]
  fewest, most = min(counts), max(counts)
  if most == 1:
    return 'one seed'
  number = f'{most}' if fewest == most else f'{fewest} to {most}'
  return f'{number} seeds, with standard deviation'


def _curve(setting, variant):
  printed = {}
  if setting.benchmark and variant.label in setting.benchmark.models:
    printed = setting.benchmark.models[variant.label].curve
  epochs = {
      epoch: variant.mean(validation_at(epoch)) for epoch in variant.epochs
  }
  return Curve(variant.label, epochs, printed)


def _gain(variant, whole):
  """Returns how far a variant is above its base, the mean over seeds."""
  epochs = {}
  for epoch in variant.epochs:
    own, other = (one.by_seed(validation_at(epoch)) for one in (variant, whole))
    found = Mean.of([own[seed] - other[seed] for seed in own.keys() & other])
    if found:
      epochs[epoch] = found
  return Curve(variant.label, epochs)


def _latency(variant):
  found = variant.mean(lambda run: run.latency)
  return found and found.mean


def _points(setting, cost):
  """Returns the variants whose cost is known, and the name of the accuracy.

  On test data if all variants have some, else on validation data at the last
  epoch that all runs have.
  """

  def accuracy(run):
    return run.test_accuracy

  name = 'test accuracy (%)'
  known = [one for one in setting.variants if cost(one) and one.epochs]
  if not all(one.mean(accuracy) for one in known):
    epoch = min(run.epoch for one in known for run in one.runs if run.epoch)
    name = f'validation accuracy (%), epoch {epoch}'
    accuracy = validation_at(epoch)
  points = [
      Point(one.label, one.base, cost(one), one.mean(accuracy))
      for one in known
      if one.mean(accuracy)
  ]
  return points, name


def draw_curves(
    path: pathlib.Path,
    curves: Sequence[Curve],
    title: str,
    *,
    over: str = '',
) -> None:
  """Draws accuracy over the epochs; the spread of seeds is shaded if few.

  Args:
    path: The PNG to write.
    curves: In the order of the legend.
    title: Of the picture.
    over: The base that accuracies are differences to, a line at 0; '' for
      accuracies themselves.
  """
  few = len(curves) <= _FEW
  figure, axes = _figure(title, few)
  label = 'validation accuracy (%)'
  if over:
    label = f'validation accuracy over that of {over} (points)'
    axes.axhline(0, color=_COLORS[over], lw=1.4, label=over)
  names = [curve.label for curve in curves] + [over]
  for curve, color in zip(curves, _colors(names), strict=False):
    epochs = sorted(curve.epochs)
    means = [100 * curve.epochs[epoch].mean for epoch in epochs]
    spread = [100 * (curve.epochs[epoch].std or 0) for epoch in epochs]
    if epochs:
      line = 'o-' if len(epochs) <= _DOTS else '-'
      style = {'ms': 3, 'lw': 1.4, 'color': color, 'label': curve.label}
      axes.plot(epochs, means, line, **style)
      axes.fill_between(
          epochs,
          [mean - by for mean, by in zip(means, spread, strict=True)],
          [mean + by for mean, by in zip(means, spread, strict=True)],
          color=color,
          alpha=min(0.15, 0.3 / len(curves)) if few else 0,
          lw=0,
      )
    if curve.printed:
      style = {'ms': 6, 'lw': 0.6, 'color': color}
      points = list(curve.printed), list(curve.printed.values())
      axes.plot(*points, 'x--', **style, label=f'{curve.label}, paper')
  axes.set(xlabel='epoch', ylabel=label)
  axes.xaxis.get_major_locator().set_params(integer=True)
  _write(path, figure)


def draw_costs(
    path: pathlib.Path,
    points: Sequence[Point],
    title: str,
    *,
    cost: str,
    accuracy: str,
) -> None:
  """Draws accuracy against cost, and the Pareto front.

  Args:
    path: The PNG to write.
    points: One per variant.
    title: Of the picture.
    cost: Label of the horizontal axis.
    accuracy: Label of the vertical axis.
  """
  figure, axes = _figure(title, len(points) <= _FEW)
  best = front(points)
  if len(best) > 1:
    costs = [point.cost for point in best]
    accuracies = [100 * point.accuracy.mean for point in best]
    style = {'color': '0.7', 'lw': 1, 'label': 'front', 'zorder': 1}
    axes.plot(costs, accuracies, '-', **style)
  # If there are many, a base has one colour, and only the front has names.
  many = len(points) > MANY
  colors = _colors([point.base if many else point.label for point in points])
  for point, color, marker in zip(points, colors, itertools.cycle(_MARKERS)):
    whole = point.label == point.base
    place = (point.cost, 100 * point.accuracy.mean)
    axes.errorbar(
        *place,
        yerr=100 * (point.accuracy.std or 0) or None,
        fmt='o' if many else marker,
        mfc=None if many else 'none',  # shows points that coincide
        mew=1.6,
        ms=4 if many and not whole else 7,
        capsize=2,
        alpha=0.6 if many and not whole else 1,
        color=color,
        label=point.label if whole or not many else None,
    )
    if many and point in best:
      style = {'textcoords': 'offset points', 'fontsize': 7}
      axes.annotate(point.label, place, (4, 4), **style)
  axes.set(xlabel=cost, ylabel=accuracy)
  axes.margins(0.1)
  axes.locator_params(axis='x', nbins=6)
  _write(path, figure)


def front(points: Sequence[Point]) -> list[Point]:
  """Returns, by cost, the points that no cheaper point is as good as."""
  found = []
  for point in sorted(points, key=lambda one: (one.cost, -one.accuracy.mean)):
    if not found or point.accuracy.mean > found[-1].accuracy.mean:
      found.append(point)
  return found


def _colors(labels: Sequence[str]) -> Iterator:
  """Yields a colour for each; the only variant of a base has the base's."""
  from matplotlib import colormaps

  # First those that are least like the bases', then their lighter ones.
  colors = colormaps['tab20'].colors
  others = itertools.cycle([*colors[8::2], *colors[9::2]])
  bases = [label.partition(',')[0] for label in labels]
  for label, base in zip(labels, bases, strict=True):
    own = label == base or bases.count(base) == 1
    yield _COLORS.get(base) if own and base in _COLORS else next(others)


def _figure(title, few):
  # Without `pyplot`: no window, no global state. Imported when needed.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  size = (7.5 if few else 9, 4.5)
  figure = Figure(figsize=size, layout='constrained', dpi=120)
  FigureCanvasAgg(figure)
  axes = figure.subplots()
  axes.set_title(title, fontsize=11, loc='left')
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  return figure, axes


def _write(path, figure):
  (axes,) = figure.axes
  if axes.get_legend_handles_labels()[0]:
    axes.legend(frameon=False, loc='center left', bbox_to_anchor=(1.01, 0.5))
  with files.replaced(path) as part:
    figure.canvas.print_png(part)
