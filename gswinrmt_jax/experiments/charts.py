"""The plots of a report: learning curves, and accuracy against cost."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
import pathlib

from gswinrmt_jax import files
from gswinrmt_jax.experiments import tables
from gswinrmt_jax.experiments.results import Setting, validation_at
from gswinrmt_jax.experiments.statistics import Mean

MANY = 12  # variants that one plot can name
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
  """One variant in a plot of accuracy against cost."""

  label: str
  cost: float
  accuracy: Mean


def draw(setting: Setting, out: pathlib.Path, stem: str) -> list[str]:
  """Draws a setting's learning curves, and its accuracy against its costs.

  Args:
    setting: What was run.
    out: Folder of the plots.
    stem: Part of their names.

  Returns:
    Their names.
  """
  names = [f'curves_{stem}.png']
  shown = setting.variants
  if len(shown) > MANY:
    shown = [one for one in shown if ',' not in one.label]
  curves = [_curve(setting, one) for one in shown]
  draw_curves(out / names[0], curves, setting.title)
  for name, label, cost in (
      ('macs', tables.MACS, lambda one: one.cost and tables.macs(one.cost)),
      ('latency', 'latency (ms)', _latency),
  ):
    points, accuracy = _points(setting, cost)
    if len(points) > 1:
      names.append(f'{name}_{stem}.png')
      path = out / names[-1]
      draw_costs(path, points, setting.title, cost=label, accuracy=accuracy)
  return names


def _curve(setting, variant):
  printed = {}
  if setting.benchmark and variant.label in setting.benchmark.models:
    printed = setting.benchmark.models[variant.label].curve
  epochs = {
      epoch: variant.mean(validation_at(epoch)) for epoch in variant.epochs
  }
  return Curve(variant.label, epochs, printed)


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
      Point(one.label, cost(one), one.mean(accuracy))
      for one in known
      if one.mean(accuracy)
  ]
  return points, name


def draw_curves(
    path: pathlib.Path, curves: Sequence[Curve], title: str
) -> None:
  """Draws accuracy over the epochs, with the deviation of the seeds.

  Args:
    path: The PNG to write.
    curves: In the order of the legend.
    title: Of the plot.
  """
  figure, axes = _figure(title)
  colors = _colors([curve.label for curve in curves])
  for curve, color in zip(curves, colors, strict=True):
    epochs = sorted(curve.epochs)
    if not epochs:
      continue
    means = [100 * curve.epochs[epoch].mean for epoch in epochs]
    spread = [100 * (curve.epochs[epoch].std or 0) for epoch in epochs]
    axes.errorbar(
        epochs,
        means,
        yerr=spread if any(spread) else None,
        fmt='o-' if len(epochs) <= _DOTS else '-',
        ms=3,
        lw=1.4,
        elinewidth=0.6,
        color=color,
        label=curve.label,
    )
    if curve.printed:
      points = list(curve.printed), list(curve.printed.values())
      label = f'{curve.label}, paper'
      axes.plot(*points, 'x--', ms=6, lw=0.6, color=color, label=label)
  axes.set(xlabel='epoch', ylabel='validation accuracy (%)')
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

  All points have names; of many, those of the front.

  Args:
    path: The PNG to write.
    points: One per variant, in the colour of its base.
    title: Of the plot.
    cost: Label of the horizontal axis.
    accuracy: Label of the vertical axis.
  """
  figure, axes = _figure(title)
  best = front(points)
  axes.plot(
      [point.cost for point in best],
      [100 * point.accuracy.mean for point in best],
      color='0.7',
      lw=1,
      zorder=1,
  )
  for point in points:
    base, _, switch = point.label.partition(',')
    place = (point.cost, 100 * point.accuracy.mean)
    axes.errorbar(
        *place,
        yerr=100 * (point.accuracy.std or 0) or None,
        fmt='o',
        ms=4 if switch else 7,
        capsize=2,
        alpha=0.6 if switch else 1,
        color=_COLORS.get(base, 'black'),
        label=None if switch else point.label,
    )
    if point in best or len(points) <= MANY:
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
  """Yields a colour for each; a base has its own."""
  from matplotlib import colormaps

  # First those that are least like the bases', then their lighter ones.
  colors = colormaps['tab20'].colors
  others = itertools.cycle([*colors[8::2], *colors[9::2]])
  for label in labels:
    yield _COLORS.get(label) or next(others)


def _figure(title):
  # Without `pyplot`: no window, no global state. Imported when needed.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 4.5), layout='constrained', dpi=120)
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
