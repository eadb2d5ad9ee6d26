"""The Markdown tables of a report: the paper's next to ours, and others."""

from collections.abc import Callable, Iterable, Sequence
import functools
import math
from typing import NamedTuple

from gswinrmt_jax.experiments import paper, switches
from gswinrmt_jax.experiments.results import Setting, validation_at, Variant
from gswinrmt_jax.experiments.statistics import difference, Mean

NOTHING = '\N{EN DASH}'  # not measured, or not printed
_MINUS = '\N{MINUS SIGN}'
_PLUS_MINUS = '\N{PLUS-MINUS SIGN}'
MACS = 'MACs / 2^30'
_COLUMNS = 10  # maximum number of epochs in a table


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Returns a table; every row has as many cells as the head."""
  lines = [head, ['---'] * len(head), *rows]
  # An empty cell is one space, as in the tables of the documents.
  cells = ([f' {cell} ' if cell else ' ' for cell in line] for line in lines)
  return '\n'.join(f'|{"|".join(line)}|' for line in cells)


def number(mean: Mean | None, form: str, scale: float = 1) -> str:
  """Returns `85.90` or, over several runs, `85.90 +- 0.12`."""
  if mean is None:
    return NOTHING
  text = f'{scale * mean.mean:{form}}'.replace('-', _MINUS)
  if mean.std is None:
    return text
  return f'{text} {_PLUS_MINUS} {scale * mean.std:{form}}'


def percent(mean: Mean | None) -> str:
  """Returns a share in percent."""
  return number(mean, '.2f', scale=100)


def signed(value: float | None, digits: int = 2) -> str:
  """Returns a difference with its sign."""
  return number(None if value is None else Mean(1, value), f'+.{digits}f')


def points(change: Mean | None) -> str:
  """Returns a difference of shares in percentage points, with its interval."""
  if change is None:
    return NOTHING
  text = signed(100 * change.mean)
  if change.interval is None:
    return text
  low, high = (signed(100 * end) for end in change.interval)
  return f'{text} ({low} to {high})'


def references(numbers: Iterable[int]) -> str:
  """Returns references to the list of runs: `[1] [4]`."""
  return ' '.join(f'[{number}]' for number in numbers)


def paper_results(setting: Setting) -> str:
  """Returns Table 3 or 5, per model the rows paper, ours and difference.

  Results are of the last checkpoint, like the paper's validation accuracy. The
  paper's test loss appears to include label smoothing, so ours does, too.
  """
  head = ['', '', 'runs', 'parameters', 'more than RMT', 'epoch (s)']
  head += ['validation (%)', 'test (%)', 'test loss']
  rows = []
  for base, printed in setting.benchmark.models.items():
    rows.append(
        [
            switches.BASES[base].label,
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
    rows += _ours(setting.find(base), printed, setting.find('rmt'))
  return table(head, rows)


def _ours(variant, printed, rmt):
  """Returns our row, and a row of its differences from the paper's."""
  if variant is None:
    return [['', 'ours', '0', *[NOTHING] * 6]]
  val = variant.mean(lambda run: run.final_validation)
  test = variant.mean(lambda run: run.test_score)
  loss = variant.mean(lambda run: run.tested('smoothed_loss'))
  count, extra = variant.cost and variant.cost.parameters, ''
  if count and rmt and rmt.cost and rmt is not variant:
    extra = f'{count / rmt.cost.parameters - 1:+.2%}'.replace('%', ' %')
  ours = [
      '',
      'ours',
      str(len(variant.runs)),
      f'{count:,}' if count else NOTHING,
      extra,
      number(variant.mean(lambda run: run.seconds_per_epoch), '.0f'),
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


def paper_curves(setting: Setting) -> str:
  """Returns Table 4 or 6, and the test accuracy of Table 3 or 5."""
  benchmark = setting.benchmark
  epochs = list(benchmark.models['rmt'].curve)
  digits = 1 if benchmark is paper.MINI_IMAGENET else 2
  rows = []
  for base, printed in benchmark.models.items():
    cells = [f'{printed.curve[epoch]:.{digits}f}' for epoch in epochs]
    label = switches.BASES[base].label
    rows.append([label, 'paper', *cells, f'{printed.test:.2f}'])
    cells = [NOTHING] * (len(epochs) + 1)
    if variant := setting.find(base):
      figures = [validation_at(epoch) for epoch in epochs]
      figures.append(lambda run: run.test_score)
      cells = [percent(variant.mean(figure)) for figure in figures]
    rows.append(['', 'ours', *cells])
  return table(['', '', *map(str, epochs), 'test'], rows)


def paper_changes(setting: Setting) -> str:
  """Returns Tables 7 and 8: whole models compared, paired by seed."""
  rows, models = [], setting.benchmark.models
  for (first, second), components in paper.CHANGES.items():
    change = None
    if (one := setting.find(first)) and (other := setting.find(second)):
      tests = (v.by_seed(lambda run: run.test_score) for v in (one, other))
      change = difference(*tests)
    names = [switches.BASES[base].label for base in (first, second)]
    rows.append(
        [
            components,
            ' to '.join(names),
            signed(models[second].test - models[first].test),
            *_change_cells(change, 'not measured'),
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
    cells: Callable[[Variant], Sequence[str]],
) -> str:
  """Returns a table with a row for each variant."""
  rows = ([f'`{one.label}`', *cells(one)] for one in setting.variants)
  return table(['', *head], rows)


def variants(setting: Setting) -> str:
  """Returns all variants: epochs, last and best checkpoint, gap, runs."""
  head = ['epochs', 'validation, last (%)', 'validation, best']
  head += ['test, last (%)', 'test, best', 'test loss']
  head += ['test pixel accuracy (%)' if setting.segments else 'smoothed']
  head += ['validation less test (points)', 'runs']

  def last_column(one):
    if setting.segments:
      return percent(one.mean(lambda run: run.tested('pixel_accuracy')))
    return number(one.mean(lambda run: run.tested('smoothed_loss')), '.4f')

  def cells(one):
    last = max(one.epochs, default=0)
    ended = [run for run in one.runs if run.curve and run.epoch == last]
    return [
        ', '.join(f'{run.epoch}' for run in one.runs),
        percent(one.mean(validation_at(last))),
        percent(Mean.of(max(run.curve.values()) for run in ended)),
        percent(one.mean(lambda run: run.test_score)),
        percent(one.mean(lambda run: run.tested(run.score, 'best'))),
        number(one.mean(lambda run: run.tested('loss')), '.4f'),
        last_column(one),
        percent(one.mean(lambda run: run.gap)),
        references(one.numbers),
    ]

  return _by_variant(setting, head, cells)


def classes(setting: Setting) -> str:
  """Returns the test IoU (%) of each class, a row for each class.

  It is that of the best epoch on validation data, and empty if no run was
  tested.
  """
  tested = [
      one
      for one in setting.variants
      if any(run.tested('class_iou', 'best') for run in one.runs)
  ]
  rows = []
  for place, name in enumerate(tested[0].runs[0].class_names if tested else ()):
    figure = functools.partial(_class_iou, place)
    rows.append([name, *(percent(one.mean(figure)) for one in tested)])
  head = ['', *(f'`{one.label}`' for one in tested)]
  return table(head, rows) if rows else ''


def _class_iou(place, run):
  """Returns the IoU of a class; None if it is in no label and no prediction."""
  found = run.tested('class_iou', 'best')
  return found and found[place]


def curves(setting: Setting) -> str:
  """Returns the validation score (%) of every variant by epoch.

  Of many epochs, it shows evenly spaced ones, ending with the last.
  """
  epochs = sorted({epoch for one in setting.variants for epoch in one.epochs})
  epochs = epochs[:: -math.ceil(len(epochs) / _COLUMNS) or -1][::-1]
  return _by_variant(
      setting,
      [*map(str, epochs)],
      lambda one: [percent(one.mean(validation_at(epoch))) for epoch in epochs],
  )


def costs(setting: Setting) -> str:
  """Returns the parameters, multiply-accumulates and timings of variants."""

  def cells(one):
    devices = {run.device for run in one.runs} - {''}
    return [
        f'{one.cost.parameters:,}' if one.cost else NOTHING,
        f'{one.macs:.4g}' if one.cost else NOTHING,
        number(one.mean(lambda run: run.seconds_per_epoch), '.4g'),
        number(one.mean(lambda run: run.latency), '.3g'),
        ', '.join(sorted(devices)) or NOTHING,
    ]

  head = ['parameters', MACS, 'epoch (s)', 'latency (ms)', 'device']
  return _by_variant(setting, head, cells)


def latency_note(setting: Setting) -> str:
  """Returns how latencies were measured; '' if they were not."""
  runs = [run for one in setting.variants for run in one.runs if run.latency]
  how = sorted({_how(run.latency_of) for run in runs})
  return f'Latency is that of one image: {"; ".join(how)}.' if how else ''


def _how(latency_of):
  device = latency_of.get('device', 'device unknown')
  threads = latency_of.get('threads')
  return f'{device}, {threads} threads' if threads else device


class Change(NamedTuple):
  """A variant and the one that it is compared with.

  Attributes:
    variant: Variant with one component changed.
    against: Variant that it is compared with; None if not run.
    figure: Which score is compared, in words.
    change: Change of the score over seeds; None without a common seed.
  """

  variant: Variant
  against: Variant | None
  figure: str = NOTHING
  change: Mean | None = None


def ablations(setting: Setting, base: str) -> list[Change]:
  """Returns the switches of a base that were run, each with its comparison."""
  found = []
  for one in setting.variants:
    if one.base == base and one.switch in switches.SWITCHES[base]:
      against = switches.SWITCHES[base][one.switch].against
      found.append(_compare(one, setting.find(switches.join(base, against))))
  return found


def _compare(one, other):
  """Compares on test data, else on validation data at the last common epoch."""
  if other is None:
    return Change(one, None)
  figures = {'test': lambda run: run.test_score}
  for epoch in sorted(set(one.epochs) & set(other.epochs), reverse=True):
    figures[f'validation, epoch {epoch}'] = validation_at(epoch)
  for name, figure in figures.items():
    change = difference(other.by_seed(figure), one.by_seed(figure))
    if change:
      return Change(one, other, name, change)
  return Change(one, other)


def ablation_table(base: str, changes: list[Change]) -> str:
  """Returns the table of the ablations of a base."""
  rows = [
      [
          f'`{one.variant.switch}`',
          switches.SWITCHES[base][one.variant.switch].label,
          f'`{one.against.label}`' if one.against else NOTHING,
          one.figure,
          *_change_cells(one.change, 'nothing to compare with'),
      ]
      for one in changes
  ]
  head = ['switch', '', 'against', 'score', 'change (95 % interval)']
  return table([*head, 'seeds', ''], rows)
