"""Tables of all that was run: variants, their cost, and the ablations."""

from collections.abc import Callable
import dataclasses
import math

from gswinrmt_jax.experiments import markdown, paper_tables, switches
from gswinrmt_jax.experiments.gather import Run
from gswinrmt_jax.experiments.markdown import NOTHING
from gswinrmt_jax.experiments.statistics import Difference, difference
from gswinrmt_jax.experiments.variants import Setting, Variant

_COLUMNS = 10  # epochs in a table, at most


def variants(setting: Setting) -> str:
  """Returns every variant: how far, last and best checkpoint, gap, runs."""
  rows = []
  for one in setting.variants:
    rows.append(
        [
            f'`{one.label}`',
            ', '.join(f'{run.epoch}' for run in one.runs),
            markdown.percent(
                one.mean(validation_at(max(one.epochs, default=0)))
            ),
            markdown.percent(one.mean(_best_of(max(one.epochs, default=0)))),
            markdown.percent(one.mean(paper_tables.test_accuracy)),
            markdown.percent(
                one.mean(lambda run: run.tested('accuracy', 'best'))
            ),
            markdown.number(one.mean(lambda run: run.tested('loss')), '.4f'),
            markdown.number(
                one.mean(lambda run: run.tested('smoothed_loss')), '.4f'
            ),
            markdown.percent(one.mean(paper_tables.gap)),
            markdown.numbers(one.numbers),
        ]
    )
  head = ['', 'epochs', 'validation, last (%)', 'validation, best']
  head += ['test, last (%)', 'test, best', 'test loss', 'smoothed']
  head += ['validation less test (points)', 'runs']
  return markdown.table(head, rows)


def curves(setting: Setting) -> str:
  """Returns the validation accuracy (%) of every variant by epoch.

  Of many epochs every few, the last among them.
  """
  epochs = sorted({epoch for one in setting.variants for epoch in one.epochs})
  epochs = epochs[:: -math.ceil(len(epochs) / _COLUMNS) or -1][::-1]
  rows = [
      [
          f'`{one.label}`',
          *(markdown.percent(one.mean(validation_at(at))) for at in epochs),
      ]
      for one in setting.variants
  ]
  return markdown.table(['', *map(str, epochs)], rows)


def macs_unit(setting: Setting) -> tuple[int, str]:
  """Returns what multiply-accumulates are divided by, and how that is called.

  2^30, as in RMT's tables, unless all models are smaller than that.
  """
  costs = [one.cost.macs for one in setting.variants if one.cost]
  power = 30 if max(costs, default=0) >= 2**30 else 20
  return 2**power, f'MACs / 2^{power}'


def costs(setting: Setting) -> str:
  """Returns parameters, multiply-accumulates and what was timed."""
  rows, (divisor, unit) = [], macs_unit(setting)
  for one in setting.variants:
    cost = one.cost
    rows.append(
        [
            f'`{one.label}`',
            f'{cost.parameters:,}' if cost else NOTHING,
            f'{cost.macs / divisor:.4g}' if cost else NOTHING,
            markdown.number(one.mean(lambda run: run.seconds_per_epoch), '.4g'),
            markdown.number(one.mean(lambda run: run.latency), '.3g'),
            ', '.join(sorted({run.device for run in one.runs} - {''}))
            or NOTHING,
        ]
    )
  head = ['', 'parameters', unit, 'epoch (s)', 'latency (ms)']
  return markdown.table([*head, 'device'], rows)


def latency_note(setting: Setting) -> str:
  """Returns how latencies were measured; '' if they were not."""
  runs = [run for one in setting.variants for run in one.runs if run.latency]
  if not runs:
    return ''
  how = '; '.join(sorted({_how(run.latency_of) for run in runs}))
  note = f'Latency is that of one image: {how}.'
  spreads = [of for run in runs if (of := run.latency_of.get('spread'))]
  if spreads:
    note += (
        ' Half the distance of the quartiles of its rounds is at most '
        f'{100 * max(spreads):.1f} % of it.'
    )
  return note


def _how(latency_of):
  parts = [latency_of.get('device', 'device unknown')]
  parts.append(latency_of.get('dtype'))
  if latency_of.get('threads'):
    parts.append(f'{latency_of["threads"]} threads')
  return ', '.join(part for part in parts if part)


@dataclasses.dataclass(frozen=True)
class Change:
  """A variant against the one that it is compared with.

  Attributes:
    variant: The changed one.
    against: What it is compared with; None: not run.
    figure: Of what the difference is, in words; '' if there is none.
    found: The difference; None: no seed in common.
  """

  variant: Variant
  against: Variant | None
  figure: str = ''
  found: Difference | None = None


def ablations(setting: Setting, base: str) -> list[Change]:
  """Returns the switches of a base that were run, each against its own."""
  found = []
  for one in setting.variants:
    name, _, switch = one.label.partition(',')
    if name != base or switch not in switches.SWITCHES[base]:
      continue
    against = switches.SWITCHES[base][switch].against
    label = base if against == switches.BASE else f'{base},{against}'
    other = setting.find(label)
    found.append(_compare(one, other) if other else Change(one, None))
  return found


def _compare(one, other):
  """On test data; without it on validation data at the last common epoch."""
  figures = [('test', paper_tables.test_accuracy)]
  for epoch in sorted(set(one.epochs) & set(other.epochs), reverse=True):
    figures.append((f'validation, epoch {epoch}', validation_at(epoch)))
  for name, figure in figures:
    found = difference(other.by_seed(figure), one.by_seed(figure))
    if found:
      return Change(one, other, name, found)
  return Change(one, other)


def _best_of(epoch):
  """Of a run that got as far as that: one on its way is not compared."""
  return lambda run: (
      max(run.curve.values(), default=None) if run.epoch == epoch else None
  )


def validation_at(epoch: int) -> Callable[[Run], float | None]:
  """Returns what a run's validation accuracy was at an epoch, as a function."""
  return lambda run: run.curve.get(epoch)


def ablation_table(base: str, changes: list[Change]) -> str:
  """Returns the table of a base."""
  rows = []
  for change in changes:
    switch = change.variant.label.partition(',')[2]
    found, against = change.found, change.against
    rows.append(
        [
            f'`{switch}`',
            switches.SWITCHES[base][switch].label,
            f'`{against.label}`' if against else NOTHING,
            change.figure or NOTHING,
            markdown.points(found),
            str(found.n if found else 0),
            found.sentence if found else 'nothing to compare with',
        ]
    )
  head = ['switch', '', 'against', 'accuracy', 'change (95 % interval)']
  return markdown.table([*head, 'seeds', ''], rows)
