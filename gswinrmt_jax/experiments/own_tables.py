"""Tables of all that was run: variants, their cost, and the ablations."""

import dataclasses

from gswinrmt_jax.experiments import markdown, paper_tables, switches
from gswinrmt_jax.experiments.markdown import NOTHING
from gswinrmt_jax.experiments.statistics import Difference, difference
from gswinrmt_jax.experiments.variants import Setting, Variant


def variants(setting: Setting) -> str:
  """Returns every variant: how far, last and best checkpoint, gap, runs."""
  rows = []
  for one in setting.variants:
    rows.append(
        [
            f'`{one.label}`',
            ', '.join(f'{run.epoch}' for run in one.runs),
            markdown.percent(
                one.mean(_validation_at(max(one.epochs, default=0)))
            ),
            markdown.percent(
                one.mean(lambda run: max(run.curve.values(), default=None))
            ),
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
  head = ['', 'epochs', 'validation, last (%)', 'best', 'test, last (%)']
  head += ['best', 'test loss', 'smoothed', 'gap (points)', 'runs']
  return markdown.table(head, rows)


def costs(setting: Setting) -> str:
  """Returns parameters, multiply-accumulates and what was timed."""
  rows = []
  for one in setting.variants:
    cost = one.cost
    rows.append(
        [
            f'`{one.label}`',
            f'{cost.parameters:,}' if cost else NOTHING,
            f'{cost.macs / 2**30:.4g}' if cost else NOTHING,
            markdown.number(one.mean(lambda run: run.seconds_per_epoch), '.4g'),
            markdown.number(one.mean(lambda run: run.latency), '.3g'),
            ', '.join(sorted({run.device for run in one.runs} - {''}))
            or NOTHING,
        ]
    )
  head = ['', 'parameters', 'MACs / 2^30', 'epoch (s)', 'latency (ms)']
  return markdown.table([*head, 'device'], rows)


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
    figures.append((f'validation, epoch {epoch}', _validation_at(epoch)))
  for name, figure in figures:
    found = difference(other.by_seed(figure), one.by_seed(figure))
    if found:
      return Change(one, other, name, found)
  return Change(one, other)


def _validation_at(epoch):
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
            markdown.numbers(
                [*change.variant.numbers, *(against.numbers if against else ())]
            ),
        ]
    )
  head = ['switch', '', 'against', 'accuracy', 'change (95 % interval)']
  return markdown.table([*head, 'seeds', '', 'runs'], rows)
