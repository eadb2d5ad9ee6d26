"""The plots of a report: learning curves, and scores against cost."""

from collections.abc import Callable, Sequence
import pathlib
import textwrap
from typing import Any, NamedTuple

from gswinrmt_jax import files
from gswinrmt_jax.experiments import tables
from gswinrmt_jax.experiments.results import Setting, validation_at, Variant
from gswinrmt_jax.experiments.statistics import Mean

MANY = 12  # variants that one plot can label
_DOTS = 20  # epochs whose markers can be distinguished on a line
# Colours of the bases, distinguishable by colour-blind readers.
_COLORS = {
    'rmt': '#0072b2',
    'retention': '#d55e00',
    'swat': '#009e73',
    'bare': '#777777',
}


def draw(setting: Setting, out: pathlib.Path, stem: str) -> list[str]:
  """Draws learning curves and scores against costs as `OUT/PLOT_STEM.png`.

  Returns the file names.
  """
  figures = {
      'curves': learning_curves(setting),
      'macs': score_by(setting, tables.MACS, lambda one: one.macs),
      'latency': score_by(setting, 'latency (ms)', _latency),
  }
  names = []
  for name, figure in figures.items():
    if figure:
      names.append(f'{name}_{stem}.png')
      with files.replaced(out / names[-1]) as part:
        figure.savefig(part, format='png')
  return names


def learning_curves(setting: Setting) -> Any:
  """Returns the figure of the validation score by epoch.

  Error bars are standard deviations over seeds; the paper's points have the
  same colour. With more than `MANY` variants, only whole models are shown.
  """
  from matplotlib import colormaps

  figure, axes = _figure(setting.title)
  # For variants: first the colours least like those of the bases, then their
  # lighter shades.
  colors = colormaps['tab20'].colors
  axes.set_prop_cycle(color=[*colors[8::2], *colors[9::2]])
  printed = setting.benchmark.models if setting.benchmark else {}
  many = len(setting.variants) > MANY
  for one in setting.variants:
    if not one.epochs or (many and one.switch):
      continue
    means = [one.mean(validation_at(epoch)) for epoch in one.epochs]
    line, *_ = axes.errorbar(
        one.epochs,
        [100 * mean.mean for mean in means],
        yerr=[100 * (mean.std or 0) for mean in means],
        fmt='o-' if len(means) <= _DOTS else '-',
        ms=3,
        lw=1.4,
        elinewidth=0.6,
        color=_COLORS.get(one.label),
        label=one.label,
    )
    if one.label in printed:
      curve = printed[one.label].curve
      style = {'ms': 6, 'lw': 0.6, 'color': line.get_color()}
      label = f'{one.label}, paper'
      axes.plot(curve.keys(), curve.values(), 'x--', label=label, **style)
  axes.set(xlabel='epoch', ylabel=f'validation {setting.score} (%)')
  axes.xaxis.get_major_locator().set_params(integer=True)
  return _with_legend(figure, axes)


class Point(NamedTuple):
  """One variant in a plot of the score against a cost."""

  variant: Variant
  cost: float
  score: Mean


def score_by(
    setting: Setting, label: str, cost: Callable[[Variant], float | None]
) -> Any:
  """Returns the figure of the score against a cost, with the Pareto front.

  It shows the test score if all variants have one, else the validation score at
  the last epoch that all runs have. With more than `MANY` points, only those of
  the front are labelled. `label` names the cost and its unit.

  Returns None with fewer than two variants whose cost is known.
  """
  known = [one for one in setting.variants if cost(one) and one.epochs]
  score, name = (lambda run: run.test_score), f'test {setting.score} (%)'
  if not all(one.mean(score) for one in known):
    epoch = min(run.epoch for one in known for run in one.runs if run.epoch)
    score = validation_at(epoch)
    name = f'validation {setting.score} (%), epoch {epoch}'
  points = [
      Point(one, cost(one), one.mean(score)) for one in known if one.mean(score)
  ]
  if len(points) < 2:
    return None
  figure, axes = _figure(setting.title)
  best = front(points)
  places = [(point.cost, 100 * point.score.mean) for point in best]
  axes.plot(*zip(*places, strict=True), color='0.7', lw=1, zorder=1)
  for point in points:
    one, place = point.variant, (point.cost, 100 * point.score.mean)
    axes.errorbar(
        *place,
        yerr=100 * (point.score.std or 0) or None,
        fmt='o',
        ms=4 if one.switch else 7,
        capsize=2,
        alpha=0.6 if one.switch else 1,
        color=_COLORS.get(one.base, 'black'),
        label=None if one.switch else one.label,
    )
    if point in best or len(points) <= MANY:
      style = {'textcoords': 'offset points', 'fontsize': 7}
      axes.annotate(one.label, place, (4, 4), **style)
  axes.set(xlabel=label, ylabel=name)
  axes.margins(0.1)
  axes.locator_params(axis='x', nbins=6)
  return _with_legend(figure, axes)


def _latency(variant):
  found = variant.mean(lambda run: run.latency)
  return found and found.mean


def front(points: Sequence[Point]) -> list[Point]:
  """Returns the Pareto front by cost: points better than every cheaper one."""
  found = []
  for point in sorted(points, key=lambda one: (one.cost, -one.score.mean)):
    if not found or point.score.mean > found[-1].score.mean:
      found.append(point)
  return found


def _figure(title):
  # Without `pyplot`: no window, no global state. Imported when needed.
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 4.5), layout='constrained', dpi=120)
  axes = figure.subplots()
  axes.set_title(title, fontsize=11, loc='left')
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  return figure, axes


def _with_legend(figure, axes):
  handles, labels = axes.get_legend_handles_labels()
  if handles:
    # A variant that differs in many fields has a long label.
    axes.legend(
        handles,
        [textwrap.fill(label, 30) for label in labels],
        frameon=False,
        loc='center left',
        bbox_to_anchor=(1.01, 0.5),
    )
  return figure
