"""The paper's tables, ours beside them."""

from gswinrmt_jax.experiments import markdown, paper, switches
from gswinrmt_jax.experiments.gather import Run
from gswinrmt_jax.experiments.markdown import NOTHING
from gswinrmt_jax.experiments.statistics import difference
from gswinrmt_jax.experiments.variants import Setting


def final_validation(run: Run) -> float | None:
  """Returns the validation accuracy at the end of the whole schedule."""
  return run.curve[run.epoch] if run.finished else None


def test_accuracy(run: Run) -> float | None:
  """Returns the test accuracy of the last checkpoint."""
  return run.tested('accuracy')


def results(setting: Setting) -> str:
  """Returns Table 3 or 5: three rows a model, the paper, ours, difference.

  The last checkpoint, as in the paper, whose validation figures are those of
  its last epoch. The printed test loss looks smoothed; ours is, too.
  """
  benchmark = setting.benchmark
  head = ['', '', 'runs', 'parameters', 'more than RMT', 'epoch (s)']
  head += ['validation (%)', 'test (%)', 'test loss']
  rows, rmt = [], setting.find('rmt')
  for base, printed in benchmark.models.items():
    seconds = NOTHING if printed.seconds is None else f'{printed.seconds:g}'
    rows.append(
        [
            switches.BASES[base].label,
            'paper',
            '1',
            printed.parameters,
            printed.extra,
            seconds,
            f'{printed.val:.2f}',
            f'{printed.test:.2f}',
            f'{printed.test_loss:.4f}',
        ]
    )
    rows += _ours(setting.find(base), printed, rmt)
  return markdown.table(head, rows)


def _ours(variant, printed, rmt):
  """Returns the rows of ours and of the difference."""
  if variant is None:
    return [['', 'ours', '0', *[NOTHING] * 6]]
  val, test, loss = (
      variant.mean(figure)
      for figure in (
          final_validation,
          test_accuracy,
          lambda run: run.tested('smoothed_loss'),
      )
  )
  count, extra = variant.cost and variant.cost.parameters, ''
  if count and rmt and rmt.cost and rmt is not variant:
    extra = f'{count / rmt.cost.parameters - 1:+.2%}'.replace('%', ' %')
  ours = [
      '',
      'ours',
      str(len(variant.runs)),
      f'{count:,}' if count else NOTHING,
      extra,
      markdown.number(variant.mean(lambda run: run.seconds_per_epoch), '.0f'),
      markdown.percent(val),
      markdown.percent(test),
      markdown.number(loss, '.4f'),
  ]
  if not test:
    return [ours]
  change = ['', 'difference', '', '', '', '']
  change.append(markdown.signed(100 * val.mean - printed.val))
  change.append(markdown.signed(100 * test.mean - printed.test))
  change.append(
      markdown.signed(loss and loss.mean - printed.test_loss, digits=4)
  )
  return [ours, change]


def curves(setting: Setting) -> str:
  """Returns Table 4 or 6, with the test accuracy of Table 3 or 5 behind."""
  benchmark = setting.benchmark
  epochs = list(benchmark.models['rmt'].curve)
  rows = []
  for base, printed in benchmark.models.items():
    digits = 1 if benchmark is paper.MINI_IMAGENET else 2
    rows.append(
        [
            switches.BASES[base].label,
            'paper',
            *(f'{printed.curve[epoch]:.{digits}f}' for epoch in epochs),
            f'{printed.test:.2f}',
        ]
    )
    variant = setting.find(base)
    cells = [NOTHING] * (len(epochs) + 1)
    if variant:
      cells = [
          markdown.percent(
              variant.mean(lambda run, at=epoch: run.curve.get(at))
          )
          for epoch in epochs
      ]
      cells.append(markdown.percent(variant.mean(test_accuracy)))
    rows.append(['', 'ours', *cells])
  return markdown.table(['', '', *map(str, epochs), 'test'], rows)


def changes(setting: Setting) -> str:
  """Returns Tables 7 and 8: whole models compared, paired by seed."""
  rows = []
  for first, second, printed in setting.benchmark.changes:
    one, other = setting.find(first), setting.find(second)
    found = None
    if one and other:
      found = difference(
          one.by_seed(test_accuracy), other.by_seed(test_accuracy)
      )
    names = [switches.BASES[base].label for base in (first, second)]
    rows.append(
        [
            paper.COMPONENTS[first, second],
            ' to '.join(names),
            markdown.signed(printed),
            markdown.points(found),
            str(found.n if found else 0),
            found.sentence if found else 'not measured',
        ]
    )
  head = ['components', 'models', 'paper', 'ours (95 % interval)', 'seeds', '']
  return markdown.table(head, rows)


def sources(setting: Setting) -> str:
  """Returns which runs the figures of the whole models are from."""
  found = [
      f'{switches.BASES[base].label} {markdown.numbers(variant.numbers)}'
      for base in setting.benchmark.models
      if (variant := setting.find(base))
  ]
  return f'Ours are runs: {"; ".join(found) or "none"}.'


def gaps(setting: Setting) -> str:
  """Returns validation less test accuracy, in points."""
  rows = []
  for base, printed in setting.benchmark.models.items():
    variant = setting.find(base)
    ours = variant and variant.mean(gap)
    rows.append(
        [
            switches.BASES[base].label,
            markdown.signed(printed.val - printed.test),
            markdown.percent(ours),
        ]
    )
  return markdown.table(
      ['validation less test (points)', 'paper', 'ours'], rows
  )


def gap(run: Run) -> float | None:
  """Returns validation less test accuracy of the last checkpoint, if tested."""
  tested, data = test_accuracy(run), run.config.data
  if tested is None or data.test_split == data.val_split:
    return None
  return final_validation(run) - tested
