"""Writes a report: `report.md` and its pictures."""

from collections.abc import Sequence
import pathlib
import re

from gswinrmt_jax import files
from gswinrmt_jax.experiments import (
    charts,
    gather,
    markdown,
    missing,
    own_tables,
    paper_tables,
    switches,
    variants,
)
from gswinrmt_jax.experiments.statistics import Mean
from gswinrmt_jax.experiments.variants import Setting


def write(paths: Sequence[pathlib.Path], out: pathlib.Path) -> pathlib.Path:
  """Writes a report of the runs below some folders.

  Args:
    paths: As `gather.gather` has them.
    out: Folder of `report.md` and its pictures.

  Returns:
    The report.

  Raises:
    UserError: If there are no runs.
  """
  runs, problems = gather.gather(paths)
  settings, passed_over = variants.group(runs)
  out.mkdir(parents=True, exist_ok=True)
  parts = ['# Report', _legend(runs, settings)]
  for number, setting in enumerate(settings):
    same = [one.title for one in settings[:number]].count(setting.title)
    stem = re.sub(r'\W+', '_', setting.title) + (f'_{same + 1}' if same else '')
    parts += _section(setting, out, stem)
  absent = [line for one in settings for line in missing.lines(one)]
  parts += ['## What is missing', _list([*absent, *problems, *passed_over])]
  parts += ['## Runs', _runs(runs)]
  path = out / 'report.md'
  with files.replacing(path) as part:
    part.write_text('\n\n'.join(parts) + '\n')
  return path


def _legend(runs, settings):
  return (
      f'Runs: {len(runs)}; settings: {len(settings)}. Runs of a setting differ '
      'in model and seed alone. Figures are means over seeds, with the '
      'standard deviation where there are several; in brackets is the number '
      'of the run in the list at the end. What is not measured has a '
      f'{markdown.NOTHING}. "Last" is the last epoch, which the paper reports, '
      '"best" the best on validation data. Test accuracy is of runs that '
      "finished the whole schedule. Intervals are those of Student's t over "
      'differences of the same seed, 95 %.'
  )


def _section(setting: Setting, out: pathlib.Path, stem: str) -> list[str]:
  """Returns the parts of a setting, and draws its pictures."""
  parts = [f'## {setting.title}', _facts(setting)]
  if setting.benchmark:
    parts += _beside_the_paper(setting)
  parts += ['### All variants', own_tables.variants(setting)]
  parts += ['### Cost', own_tables.costs(setting)]
  for base in switches.BASES:
    changes = own_tables.ablations(setting, base)
    if not changes:
      continue
    parts += [
        f'### {switches.BASES[base].label}, one component changed',
        own_tables.ablation_table(base, changes),
    ]
    known = sum(one.found is not None and one.found.n > 1 for one in changes)
    if known > 1:
      parts.append(
          f'Of {known} comparisons about {0.05 * known:.1g} are outside of '
          'their noise by chance alone.'
      )
  return [*parts, '### Pictures', *_pictures(setting, out, stem)]


def _beside_the_paper(setting):
  benchmark = setting.benchmark
  differences = '; '.join(setting.differences)
  return [
      f'Beside {benchmark.title} of the paper. '
      + (
          f"Not as in the paper's recipe: {differences}."
          if differences
          else "The protocol is the paper's recipe."
      ),
      f'### Table {benchmark.results}',
      paper_tables.results(setting),
      paper_tables.sources(setting),
      f'### Table {benchmark.curves}: validation accuracy (%) by epoch',
      paper_tables.curves(setting),
      '### Tables 7 and 8: test accuracy (points)',
      paper_tables.changes(setting),
      '### Validation and test',
      paper_tables.gaps(setting),
  ]


def _facts(setting):
  config = setting.config
  size = setting.variants[0].runs[0].image_size
  pixels = f' at {size[1]}x{size[0]}' if size else ''
  resized = ', '.join(
      f'{field} {value}'
      for field, value in switches.sizes(config.model).items()
  )
  return (
      f'{config.num_epochs} epochs of {config.data.name}{pixels}, batch '
      f'{config.batch_size}, {config.dtype}, peak learning rate '
      f'{config.optimizer.learning_rate:g}.'
      + (
          f" Sizes that are not the named models': {resized}."
          if resized
          else ''
      )
  )


def _pictures(setting, out, stem):
  """Draws what there is to draw; returns the lines that show it."""
  names = [f'curves_{stem}.png']
  shown = setting.variants
  if len(shown) > charts.MANY:
    shown = [one for one in shown if ',' not in one.label]
  curves = [_curve(setting, one) for one in shown]
  charts.write_curves(out / names[0], curves, setting.title)
  for base in switches.BASES:
    origin = setting.find(base)
    own = [one for one in setting.variants if one.base == base]
    if origin is None or len(own) < 2:
      continue
    names.append(f'curves_{stem}_{base}.png')
    charts.write_curves(
        out / names[-1],
        [_over(one, origin) for one in own if one is not origin],
        f'{setting.title}: switches of {base}',
        accuracy=f'validation accuracy over that of {base} (points)',
    )
  for figure, label in (
      (lambda one: one.cost and one.cost.macs / 2**20, 'MACs'),
      (_latency, 'latency'),
  ):
    points, accuracy = _points(setting, figure)
    if not points:
      continue
    names.append(f'{label.lower()}_{stem}.png')
    charts.write_costs(
        out / names[-1],
        points,
        setting.title,
        cost='MACs / 2^20' if label == 'MACs' else 'latency (ms)',
        accuracy=f'{accuracy} accuracy (%)',
    )
  return [f'![{name}]({name})' for name in names]


def _curve(setting, variant):
  whole = variant.label in switches.BASES
  printed = {}
  if whole and setting.benchmark:
    model = setting.benchmark.models.get(variant.label)
    printed = model.curve if model else {}
  epochs = {
      epoch: variant.mean(lambda run, at=epoch: run.curve.get(at))
      for epoch in variant.epochs
  }
  return charts.Curve(variant.label, epochs, printed)


def _over(variant, origin):
  """Returns how far a variant is above another, the mean over seeds."""
  epochs = {}
  for epoch in variant.epochs:
    own, other = (
        one.by_seed(lambda run, at=epoch: run.curve.get(at))
        for one in (variant, origin)
    )
    found = Mean.of([own[seed] - other[seed] for seed in own.keys() & other])
    if found:
      epochs[epoch] = found
  return charts.Curve(variant.label, epochs)


def _points(setting, figure):
  """On test data if all variants have some, else on validation data."""
  for name, accuracy in (
      ('test', paper_tables.test_accuracy),
      ('validation', lambda run: run.curve.get(run.epoch)),
  ):
    points = [
        charts.Point(
            one.label,
            one.base,
            figure(one),
            one.mean(accuracy),
        )
        for one in setting.variants
        if figure(one) and one.mean(accuracy)
    ]
    if len(points) == len(setting.variants) or name == 'validation':
      return points, name
  return [], ''


def _latency(variant):
  found = variant.mean(lambda run: run.latency)
  return found and found.mean


def _list(lines):
  return '\n'.join(f'- {line}' for line in lines) or 'Nothing.'


def _runs(runs):
  return '\n'.join(
      f'{number}. `{run.source}`: {switches.label(run.config.model)}, '
      f'{run.config.data.name}, seed {run.config.seed}, epoch {run.epoch} of '
      f'{run.config.num_epochs}'
      for number, run in enumerate(runs, 1)
  )
