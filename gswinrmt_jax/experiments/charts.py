"""Pictures of a report: learning curves, and accuracy against cost."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import pathlib

from gswinrmt_jax import files
from gswinrmt_jax.experiments.statistics import Mean

MANY = 12  # what one picture can name
_FEW = 6  # spreads that can be shaded over each other
_MARKERS = 'os^Dv*P'
_DOTS = 20  # epochs that can be told apart on a line
# One colour for each of the whole models, told apart by all eyes.
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
    epochs: Epoch to validation accuracy, over the seeds.
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


def write_curves(
    path: pathlib.Path,
    curves: Sequence[Curve],
    title: str,
    *,
    over: str = '',
) -> None:
  """Draws an accuracy over the epochs; of few, the spread of seeds shaded.

  Args:
    path: Where the PNG goes, whole or not at all.
    curves: In the order of the legend.
    title: Over the picture.
    over: The base that accuracies are differences to, which is a line at 0;
      '': they are validation accuracies.
  """
  figure, axes = _figure(title, width=7.5 if len(curves) <= _FEW else 9)
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
      axes.plot(
          epochs, means, line, ms=3, lw=1.4, color=color, label=curve.label
      )
      axes.fill_between(
          epochs,
          [mean - by for mean, by in zip(means, spread, strict=True)],
          [mean + by for mean, by in zip(means, spread, strict=True)],
          color=color,
          alpha=min(0.15, 0.3 / len(curves)) if len(curves) <= _FEW else 0,
          lw=0,
      )
    if curve.printed:
      axes.plot(
          list(curve.printed),
          list(curve.printed.values()),
          'x--',
          ms=6,
          lw=0.6,
          color=color,
          label=f'{curve.label}, paper',
      )
  axes.set(xlabel='epoch', ylabel=label)
  axes.xaxis.get_major_locator().set_params(integer=True)
  _write(path, figure)


def write_costs(
    path: pathlib.Path,
    points: Sequence[Point],
    title: str,
    *,
    cost: str,
    accuracy: str,
) -> None:
  """Draws accuracy against cost, and the front that nothing is better than.

  Args:
    path: Where the PNG goes, whole or not at all.
    points: One a variant.
    title: Over the picture.
    cost: Of the horizontal axis.
    accuracy: Of the vertical axis.
  """
  figure, axes = _figure(title, width=7.5 if len(points) <= _FEW else 9)
  best = front(points)
  if len(best) > 1:
    axes.plot(
        [point.cost for point in best],
        [100 * point.accuracy.mean for point in best],
        '-',
        color='0.7',
        lw=1,
        label='front',
        zorder=1,
    )
  # Of many, a base has one colour, and only the front has names.
  many = len(points) > MANY
  colors = _colors([point.base if many else point.label for point in points])
  for point, color, marker in zip(points, colors, itertools.cycle(_MARKERS)):
    whole = point.label == point.base
    axes.errorbar(
        point.cost,
        100 * point.accuracy.mean,
        yerr=100 * (point.accuracy.std or 0) or None,
        fmt='o' if many else marker,
        mfc=None if many else 'none',  # seen through where points coincide
        mew=1.6,
        ms=4 if many and not whole else 7,
        capsize=2,
        alpha=0.6 if many and not whole else 1,
        color=color,
        label=point.label if whole or not many else None,
    )
    if many and point in best:
      place = (point.cost, 100 * point.accuracy.mean)
      axes.annotate(
          point.label, place, (4, 4), textcoords='offset points', fontsize=7
      )
  axes.set(xlabel=cost, ylabel=accuracy)
  axes.margins(0.1)
  axes.locator_params(axis='x', nbins=6)
  _write(path, figure)


def front(points: Sequence[Point]) -> list[Point]:
  """Returns the points that no cheaper one is as good as, by cost."""
  found = []
  for point in sorted(points, key=lambda one: (one.cost, -one.accuracy.mean)):
    if not found or point.accuracy.mean > found[-1].accuracy.mean:
      found.append(point)
  return found


def _colors(labels):
  """Yields the colour of each: a base's is that of its only one, too."""
  from matplotlib import colormaps

  # First those that are least like the bases', then their lighter ones.
  colors = colormaps['tab20'].colors
  others = itertools.cycle([*colors[8::2], *colors[9::2]])
  bases = [label.partition(',')[0] for label in labels]
  for label, base in zip(labels, bases, strict=True):
    own = label == base or bases.count(base) == 1
    yield _COLORS.get(base) if own and base in _COLORS else next(others)


def _figure(title, *, width):
  # Imported here, and without `pyplot`: no window, no global state.
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, 4.5), layout='constrained', dpi=120)
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
  with files.replacing(path) as part:
    figure.canvas.print_png(part)
