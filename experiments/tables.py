"""The Markdown tables of a report, and the statistics in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import math
from typing import NamedTuple
import warnings

import ablations
import collect
from flax import traverse_util
import numpy as np
import paper
from runs import Figure, Run, Setting, validation_at
from scipy import stats

from gswinrmt_jax import recipes
from gswinrmt_jax.runs import scores as score_lib

NOTHING = '\N{EN DASH}'  # not measured, or not printed
_MINUS = '\N{MINUS SIGN}'
_PLUS_MINUS = '\N{PLUS-MINUS SIGN}'
_COLUMNS = 10  # maximum number of epochs in a table
_FIELDS = 8  # maximum number of fields in the table of all runs
_LEAST = 3  # seeds: with two, the interval can be tiny by chance


class Mean(NamedTuple):
  """Mean of n values, and their standard deviation (n - 1) if n > 1."""

  n: int
  mean: float
  std: float | None = None


class Change(NamedTuple):
  """Mean of n paired differences, and its 95 % interval if n > 1."""

  n: int
  mean: float
  interval: tuple[float, float] | None = None

  @property
  def verdict(self) -> str:
    """Whether the interval is on one side of 0."""
    if self.n < _LEAST:
      seeds = 'one seed' if self.n == 1 else f'{self.n} seeds'
      return f'{seeds}: it cannot be distinguished from seed noise'
    low, high = self.interval
    if low > 0 or high < 0:
      return f'more than noise: {"better" if low > 0 else "worse"}'
    return 'not more than noise'


def mean(values: Iterable[float]) -> Mean | None:
  """Returns mean and standard deviation of values, None without values.

  The loss of weights that are not finite is NaN; so are then both.
  """
  values = np.array(list(values))
  if not values.size:
    return None
  with np.errstate(invalid='ignore'):
    std = float(values.std(ddof=1)) if values.size > 1 else None
  return Mean(values.size, float(values.mean()), std)


def difference(
    first: Mapping[int, float], second: Mapping[int, float]
) -> Change | None:
  """Returns the mean of `second - first`, paired by seed, with its interval.

  Pairing removes the noise that two runs with one seed share: the order of the
  data and the random draws of training. The interval is Student's t,
  `mean -+ t(0.975, n - 1) std / sqrt(n)`. Returns None without a common seed.
  """
  seeds = sorted(first.keys() & second.keys())
  before, after = ([one[seed] for seed in seeds] for one in (first, second))
  found = mean(b - a for a, b in zip(before, after, strict=True))
  if found is None or found.n == 1:
    return found and Change(1, found.mean)
  with warnings.catch_warnings():
    # SciPy warns of equal differences, whose interval is a single point.
    warnings.simplefilter('ignore', RuntimeWarning)
    low, high = stats.ttest_rel(after, before).confidence_interval(0.95)
  return Change(found.n, found.mean, (float(low), float(high)))


def by_seed(runs: Iterable[Run], figure: Figure) -> dict[int, float]:
  """Returns a figure by seed, for the runs that have it."""
  found = {run.config.seed: figure(run) for run in runs}
  return {seed: value for seed, value in found.items() if value is not None}


def average(runs: Iterable[Run], figure: Figure) -> Mean | None:
  """Returns the mean of a figure over the runs that have it."""
  return mean(by_seed(runs, figure).values())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Returns a table; every row has as many cells as the head."""
  lines = [head, ['---'] * len(head), *rows]
  # An empty cell is one space, as in the tables of the documents.
  cells = ([f' {cell} ' if cell else ' ' for cell in line] for line in lines)
  return '\n'.join(f'|{"|".join(line)}|' for line in cells)


def number(found: Mean | None, form: str, scale: float = 1) -> str:
  """Returns `85.90` or, over several runs, `85.90 +- 0.12`."""
  if found is None:
    return NOTHING
  text = f'{scale * found.mean:{form}}'.replace('-', _MINUS)
  if found.std is None:
    return text
  return f'{text} {_PLUS_MINUS} {scale * found.std:{form}}'


def percent(found: Mean | None) -> str:
  """Returns a share in percent."""
  return number(found, '.2f', scale=100)


def signed(value: float | None, digits: int = 2) -> str:
  """Returns a difference with its sign."""
  return number(None if value is None else Mean(1, value), f'+.{digits}f')


def points(change: Change | None) -> str:
  """Returns a difference of shares in percentage points, with its interval."""
  if change is None:
    return NOTHING
  text = signed(100 * change.mean)
  if change.interval is None:
    return text
  low, high = (signed(100 * end) for end in change.interval)
  return f'{text} ({low} to {high})'


def references(runs: Iterable[Run]) -> str:
  """Returns references to the table of all runs: `[1] [4]`."""
  return ' '.join(f'[{run.number}]' for run in runs)


def all_runs(runs: Sequence[Run]) -> str:
  """Returns a row per run: its folder, what differs, how far it is, scores.

  What differs in the design of models is in their names (`ablations.label`).
  Sizes are shown where they differ from the named model's. If many fields
  differ, only data set and seed are shown.
  """
  flat = [_comparable(run) for run in runs]
  names = sorted({name for fields in flat for name in fields})
  differing = [
      name for name in names if len({fields.get(name) for fields in flat}) > 1
  ]
  if len(differing) > _FIELDS:
    differing = ['data.name', 'seed']
  rows = []
  for run, fields in zip(runs, flat, strict=True):
    last = run.curve.get(run.epoch)
    scores = (
        last,
        run.best_validation,
        run.test_score,
        run.tested(run.score, 'best'),
    )
    rows.append(
        [
            f'[{run.number}]',
            f'`{run.source}`',
            f'`{run.label}`',
            *(fields.get(name, NOTHING) for name in differing),
            run.progress,
            *(NOTHING if x is None else f'{100 * x:.2f}' for x in scores),
        ]
    )
  head = ['', 'run', 'model', *(f'`{name}`' for name in differing), 'progress']
  head += ['validation, last (%)', 'best', 'test, last (%)', 'best']
  return table(head, rows)


def _comparable(run):
  """Returns the fields that the name of the model does not tell, as text."""
  fields = run.config.to_dict()
  collect.leave_out_places(fields)
  model = fields.pop('model')
  shown = ablations.sizes(model)
  shown |= {name: model[name] for name in ablations.TRAINING}
  fields |= {'size': ablations.size_of(model['name']), 'model': shown}
  flat = traverse_util.flatten_dict(fields, sep='.')
  return {name: str(value) for name, value in flat.items()}


def apart(setting: Setting, settings: Iterable[Setting]) -> str:
  """Lists the fields that tell a setting from others with its title."""
  same = [one for one in settings if one.title == setting.title]
  shared = [_shared(one) for one in same]
  own = _shared(setting)
  names = {name for fields in shared for name in fields}
  return ', '.join(
      f'`{name}` {own.get(name) or "empty"}'
      for name in sorted(names)
      if len({fields.get(name) for fields in shared}) > 1
  )


def _shared(setting):
  """Returns the fields in which the runs of a setting agree, as text."""
  first, *others = ({*_comparable(run).items()} for run in setting.runs)
  fields = dict(first.intersection(*others))
  free = {'seed', *recipes.free_fields()}
  return {name: fields[name] for name in fields if name not in free}


def paper_results(setting: Setting) -> str:
  """Returns Table 3 or 5, per model the rows paper, ours and difference.

  Results are of the last checkpoint, like the paper's validation accuracy. The
  paper's test loss appears to include label smoothing, so ours does, too.
  """
  head = ['', '', 'complete runs', 'parameters', 'more than RMT', 'epoch (s)']
  head += ['validation (%)', 'test (%)', 'test loss']
  rows = []
  for base, printed in setting.benchmark.models.items():
    rows.append(
        [
            ablations.BASES[base].label,
            'paper',
            '1',
            printed.parameters,
            printed.extra,
            NOTHING if printed.seconds is None else f'{printed.seconds:g}',
            f'{printed.val:.2f}',
            f'{printed.test:.2f}',
            f'{printed.test_loss:.4f}',
        ]
    )
    rows += _ours(setting.variants, base, printed)
  return table(head, rows)


def _ours(variants, base, printed):
  """Returns our row, and a row of its differences from the paper's."""
  if base not in variants:
    return [['', 'ours', '0', *[NOTHING] * 6]]
  runs = variants[base]
  val = average(runs, lambda run: run.final_validation)
  test = average(runs, lambda run: run.test_score)
  loss = average(runs, lambda run: run.tested('smoothed_loss'))
  count, rmt = (_parameters(variants.get(name, ())) for name in (base, 'rmt'))
  extra = ''
  if count and rmt and base != 'rmt':
    extra = f'{count / rmt - 1:+.2%}'.replace('%', ' %')
  ours = [
      '',
      'ours',
      str(sum(run.finished for run in runs)),
      f'{count:,}' if count else NOTHING,
      extra,
      number(average(runs, lambda run: run.seconds_per_epoch), '.0f'),
      percent(val),
      percent(test),
      number(loss, '.4f'),
  ]
  if not test:
    return [ours]
  change = [
      *('', 'difference', '', '', '', ''),
      signed(100 * val.mean - printed.val),
      signed(100 * test.mean - printed.test),
      signed(loss and loss.mean - printed.test_loss, digits=4),
  ]
  return [ours, change]


def _cost(runs):
  """Returns the cost of a variant, None if no run has an image size."""
  return next((run.cost for run in runs if run.image_size), None)


def _parameters(runs):
  cost = _cost(runs)
  return cost and cost.parameters


def paper_curves(setting: Setting) -> str:
  """Returns Table 4 or 6, and the test accuracy of Table 3 or 5."""
  benchmark = setting.benchmark
  epochs = list(benchmark.models['rmt'].curve)
  digits = 1 if benchmark is paper.MINI_IMAGENET else 2
  figures = [*map(validation_at, epochs), lambda run: run.test_score]
  rows = []
  for base, printed in benchmark.models.items():
    cells = [f'{printed.curve[epoch]:.{digits}f}' for epoch in epochs]
    label = ablations.BASES[base].label
    rows.append([label, 'paper', *cells, f'{printed.test:.2f}'])
    runs = setting.variants.get(base, ())
    rows.append(['', 'ours', *(percent(average(runs, f)) for f in figures)])
  return table(['', '', *map(str, epochs), 'test'], rows)


def paper_changes(setting: Setting) -> str:
  """Returns Tables 7 and 8: whole models compared, paired by seed."""
  rows, models = [], setting.benchmark.models
  for pair, components in paper.CHANGES.items():
    tests = (
        by_seed(setting.variants.get(base, ()), lambda run: run.test_score)
        for base in pair
    )
    first, second = pair
    rows.append(
        [
            components,
            ' to '.join(ablations.BASES[base].label for base in pair),
            signed(models[second].test - models[first].test),
            *_change_cells(difference(*tests), 'not measured'),
        ]
    )
  head = ['components', 'models', 'paper', 'ours (95 % interval)', 'seeds', '']
  return table(head, rows)


def _change_cells(change, otherwise):
  """Returns difference, number of seeds, and the verdict or `otherwise`."""
  if change is None:
    return [NOTHING, '0', otherwise]
  return [points(change), str(change.n), change.verdict]


def _by_variant(
    setting: Setting,
    head: Sequence[str],
    cells: Callable[[Sequence[Run]], Sequence[str]],
) -> str:
  """Returns a table with a row for each variant."""
  rows = (
      [f'`{label}`', *cells(runs)] for label, runs in setting.variants.items()
  )
  return table(['', *head], rows)


def variants(setting: Setting) -> str:
  """Returns all variants: epochs, last and best checkpoint, gap, runs."""
  head = ['epochs', 'validation, last (%)', 'validation, best']
  head += ['test, last (%)', 'test, best', 'test loss']
  others = {'mean_iou': 'pixel_accuracy', 'ap': 'ap50', 'mask_ap': 'mask_ap50'}
  other_score = others.get(setting.runs[0].score, 'smoothed_loss')
  label = score_lib.SCORES[other_score].label
  head += ['smoothed' if 'loss' in other_score else f'test {label} (%)']
  head += ['validation less test (points)', 'runs']

  def other(runs):
    value = average(runs, lambda run: run.tested(other_score))
    return number(value, '.4f') if 'loss' in other_score else percent(value)

  def cells(runs):
    last = max(run.epoch for run in runs)
    ended = [run for run in runs if run.curve and run.epoch == last]
    return [
        ', '.join(f'{run.epoch}' for run in runs),
        percent(average(runs, validation_at(last))),
        percent(average(ended, lambda run: run.best_validation)),
        percent(average(runs, lambda run: run.test_score)),
        percent(average(runs, lambda run: run.tested(run.score, 'best'))),
        number(average(runs, lambda run: run.tested('loss')), '.4f'),
        other(runs),
        percent(average(runs, lambda run: run.gap)),
        references(runs),
    ]

  return _by_variant(setting, head, cells)


def classes(setting: Setting) -> str:
  """Returns the test IoU or AP (%) of each class, a row for each class.

  It is that of the best epoch on validation data, and empty if no run was
  tested.
  """
  tested = {
      label: runs
      for label, runs in setting.variants.items()
      if any(run.tested(_of_classes(run), 'best') for run in runs)
  }
  if not tested:
    return ''
  names = next(iter(tested.values()))[0].class_names
  rows = []
  for place, name in enumerate(names):
    figure = functools.partial(_of_class, place)
    cells = (percent(average(runs, figure)) for runs in tested.values())
    rows.append([name, *cells])
  return table(['', *(f'`{label}`' for label in tested)], rows)


def _of_classes(run):
  """Returns the name of the score of each class."""
  return f'class_{run.score}'.replace('mean_', '')


def _of_class(place, run):
  """Returns the score of a class; None if it has none."""
  found = run.tested(_of_classes(run), 'best')
  return found and found[place]


def curves(setting: Setting) -> str:
  """Returns the validation score (%) of every variant by epoch.

  Of many epochs, it shows evenly spaced ones, ending with the last.
  """
  epochs = sorted({epoch for run in setting.runs for epoch in run.curve})
  epochs = epochs[:: -math.ceil(len(epochs) / _COLUMNS) or -1][::-1]
  return _by_variant(
      setting,
      [*map(str, epochs)],
      lambda runs: [percent(average(runs, validation_at(e))) for e in epochs],
  )


def costs(setting: Setting) -> str:
  """Returns parameters, multiply-accumulates and epoch times of variants."""

  def cells(runs):
    cost, devices = _cost(runs), {run.device for run in runs} - {''}
    return [
        f'{cost.parameters:,}' if cost else NOTHING,
        f'{cost.macs / 2**30:.4g}' if cost else NOTHING,
        number(average(runs, lambda run: run.seconds_per_epoch), '.4g'),
        ', '.join(sorted(devices)) or NOTHING,
    ]

  head = ['parameters', 'MACs / 2^30', 'epoch (s)', 'device']
  return _by_variant(setting, head, cells)


class Ablation(NamedTuple):
  """A variant with one component changed, compared with another.

  Attributes:
    switch: The switch of its base.
    runs: Its runs.
    against: Label of the variant that it is compared with; None if not run.
    figure: Which score is compared, in words.
    change: Change of the score over seeds; None without a common seed.
  """

  switch: str
  runs: Sequence[Run]
  against: str | None = None
  figure: str = NOTHING
  change: Change | None = None


def ablate(setting: Setting, base: str) -> list[Ablation]:
  """Returns the switches of a base that were run, each with its comparison."""
  found = []
  for label, runs in setting.variants.items():
    of, _, switch = label.partition(',')
    if of == base and switch in ablations.SWITCHES[base]:
      against = ablations.SWITCHES[base][switch].against
      other = ablations.join(base, against)
      if other in setting.variants:
        compared = _compare(runs, setting.variants[other])
        found.append(Ablation(switch, runs, other, *compared))
      else:
        found.append(Ablation(switch, runs))
  return found


def _compare(runs, others):
  """Compares on test data, else on validation data at the last common epoch."""
  figures = {'test': lambda run: run.test_score}
  first, second = (
      {e for run in two for e in run.curve} for two in (runs, others)
  )
  for epoch in sorted(first & second, reverse=True):
    figures[f'validation, epoch {epoch}'] = validation_at(epoch)
  for name, figure in figures.items():
    change = difference(by_seed(others, figure), by_seed(runs, figure))
    if change:
      return name, change
  return NOTHING, None


def ablation_table(base: str, found: Sequence[Ablation]) -> str:
  """Returns the table of the ablations of a base."""
  rows = [
      [
          f'`{one.switch}`',
          ablations.SWITCHES[base][one.switch].label,
          f'`{one.against}`' if one.against else NOTHING,
          one.figure,
          *_change_cells(one.change, 'nothing to compare with'),
      ]
      for one in found
  ]
  head = ['switch', '', 'against', 'score', 'change (95 % interval)']
  return table([*head, 'seeds', ''], rows)
