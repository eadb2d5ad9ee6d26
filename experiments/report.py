"""Compares runs with each other and with the results of the paper.

  python experiments/report.py runs/table5 runs/ablation-cifar10 --out report
  python experiments/report.py results --out report

Writes report.md, and a plot of learning curves for each setting, into a folder.
It begins with a table of all runs: what differs, how far they are, and their
scores (accuracy of classifiers, mean IoU of segmenters, AP of detectors). Then
each setting, the runs that differ only in model and seed, has a section.

DIR is a run folder, a folder of run folders (such as OUT/NAME of `run.py`), or
a folder of JSON files written by `collect.py`. Runs need not be complete: the
report lists what is missing.
"""

import argparse
from collections.abc import Iterator, Sequence
import pathlib
import sys
import textwrap
from typing import Any

import ablations
import runs as runs_lib
from runs import Run, Setting
import tables

from gswinrmt_jax import files
from gswinrmt_jax.errors import UserError

_MANY = 12  # variants that one plot can label
_DOTS = 20  # epochs whose markers can be distinguished on a line
# Colours of the bases, distinguishable by colour-blind readers.
_COLORS = {
    'rmt': '#0072b2',
    'retention': '#d55e00',
    'swat': '#009e73',
    'bare': '#777777',
}
_OPTIMIZERS = {'adamw': 'AdamW', 'muon': 'Muon'}


def write(paths: Sequence[pathlib.Path], out: pathlib.Path) -> pathlib.Path:
  """Writes a report on the runs in `paths`; returns the path of `report.md`.

  Raises:
    UserError: If there are no runs.
  """
  runs, problems = runs_lib.gather(paths)
  settings, left_out = runs_lib.group(runs)
  out.mkdir(parents=True, exist_ok=True)
  parts = ['# Report', _legend(runs, settings), '## All runs']
  parts.append(tables.all_runs(runs))
  for number, setting in enumerate(settings, 1):
    parts += _section(setting, settings)
    name = f'curves_{number}.png'
    with files.replaced(out / name) as part:
      draw_curves(setting).savefig(part, format='png')
    parts.append(f'![{name}]({name})')
  absent = [f'{one.title}: {line}' for one in settings for line in missing(one)]
  lines = [f'- {line}' for line in (*absent, *problems, *left_out)]
  parts += ['## What is missing', '\n'.join(lines) or 'Nothing.']
  path = out / 'report.md'
  files.write_text(path, '\n\n'.join(parts) + '\n')
  return path


def _legend(runs: Sequence[Run], settings: Sequence[Setting]) -> str:
  return (
      f'Runs: {len(runs)}; settings: {len(settings)}. Runs of a setting differ '
      'only in model and seed; initialisation belongs to the setting. Numbers '
      'are means over the seeds that have them, with the standard deviation if '
      'there are several seeds. A number in brackets refers to the table of '
      f'all runs. {tables.NOTHING} means not measured. "Last" is the last '
      'epoch, which the paper reports, without averaging of weights; so are '
      'curves. "Best" is the best epoch on validation data, of the weights or '
      'of their average, if there is one. Test scores are those of runs that '
      'finished the whole schedule. '
      "Intervals are 95 % intervals of Student's t over differences between "
      'runs of the same seed. They cover variation between seeds, but not '
      'between test images, and one in twenty excludes 0 by chance. Epoch '
      'times are wall-clock times, including any other load on the machine.'
  )


def _section(setting: Setting, settings: Sequence[Setting]) -> list[str]:
  """Returns the headings and tables of a setting."""
  parts = [f'## {setting.title}', _protocol(setting)]
  # With a recipe, the protocol says how it differs from that.
  apart = '' if setting.recipe else tables.apart(setting, settings)
  if apart:
    parts.append(f'Among the settings with this title, this one has {apart}.')
  benchmark = setting.benchmark
  if benchmark:
    parts += [
        f'### Table {benchmark.results}',
        tables.paper_results(setting),
        f'### Table {benchmark.curves}: validation accuracy (%) by epoch',
        tables.paper_curves(setting),
        '### Tables 7 and 8: test accuracy (points)',
        tables.paper_changes(setting),
    ]
  else:
    parts += [f'### Validation {setting.score} (%) by epoch']
    parts += [tables.curves(setting)]
  parts += ['### All variants', tables.variants(setting)]
  if by_class := tables.classes(setting):
    score = 'IoU' if setting.segments else 'AP'
    parts += [f'### Test {score} (%) by class, best epoch', by_class]
  parts += ['### Cost', tables.costs(setting)]
  for base, model in ablations.BASES.items():
    if found := tables.ablate(setting, base):
      parts.append(f'### {model.label}, one component changed')
      parts.append(tables.ablation_table(base, found))
  return parts


def _protocol(setting: Setting) -> str:
  """Describes data and protocol, and their differences from the paper's."""
  config, recipe = setting.config, setting.recipe
  size = setting.runs[0].image_size
  crops = 'crops of ' if setting.segments else ''
  pixels = f' at {crops}{size[1]}x{size[0]}' if size else ''
  optimizer = _OPTIMIZERS[config.optimizer.name]
  steps = config.num_steps
  length = f'{steps:,} steps' if steps else f'{config.num_epochs} epochs'
  parts = [
      f'{length} of {config.data.name}{pixels}, batch '
      f'{config.batch_size}, {config.dtype}, {optimizer} with a peak learning '
      f'rate of {config.optimizer.learning_rate:g}.'
  ]
  if setting.segments:
    parts.append('Scores are the mean IoU over the classes.')
  if setting.detects:
    parts.append(f'Scores are the {setting.score}, as in COCO.')
  sizes = {}
  for runs in setting.variants.values():
    sizes |= ablations.sizes(runs[0].config.model)
  if sizes:
    listed = ', '.join(f'{field} {sizes[field]}' for field in sorted(sizes))
    parts.append(f"Sizes that are not the named models': {listed}.")
  if config.data.test_split == config.data.val_split:
    parts.append(
        'There is no test split: test results are those of validation data.'
    )
  if recipe and setting.differences:
    listed = '; '.join(setting.differences)
    parts.append(
        f"Differences from this package's recipe for {recipe.title}: {listed}."
    )
  elif recipe:
    parts.append(f"The protocol is this package's recipe for {recipe.title}.")
  return ' '.join(parts)


def missing(setting: Setting) -> Iterator[str]:
  """Yields a line for each result of a setting that is still missing."""
  for base in setting.benchmark.models if setting.benchmark else ():
    if base not in setting.variants:
      yield f'no run of {ablations.BASES[base].label}'
  for run in setting.runs:
    if not run.finished:
      _, done, total = run.length
      what = run.progress + (', not summed up' if done == total else '')
      yield f'`{run.label}`, seed {run.config.seed}: {what} [{run.number}]'
  for base in ablations.BASES:
    for one in tables.ablate(setting, base):
      if not one.change:
        numbers = tables.references(one.runs)
        yield f'`{one.runs[0].label}` {numbers} has no run to compare with'


def draw_curves(setting: Setting) -> Any:
  """Returns the figure of the validation score by epoch.

  Error bars are standard deviations over seeds; the paper's points have the
  same colour. With more than `_MANY` variants, only whole models are shown.
  """
  from matplotlib import colormaps
  from matplotlib.figure import Figure  # without a window or global state

  figure = Figure(figsize=(9, 4.5), layout='constrained', dpi=120)
  axes = figure.subplots()
  # A dollar sign in the name of a folder is no mathematics.
  axes.set_title(setting.title, fontsize=11, loc='left', parse_math=False)
  axes.grid(alpha=0.3)
  # For variants: first the colours least like those of the bases, then their
  # lighter shades.
  colors = colormaps['tab20'].colors
  axes.set_prop_cycle(color=[*colors[8::2], *colors[9::2]])
  printed = setting.benchmark.models if setting.benchmark else {}
  many = len(setting.variants) > _MANY
  for label, runs in setting.variants.items():
    epochs = sorted({epoch for run in runs for epoch in run.curve})
    if not epochs or (many and ',' in label):
      continue
    means = [tables.average(runs, runs_lib.validation_at(e)) for e in epochs]
    line, *_ = axes.errorbar(
        epochs,
        [100 * mean.mean for mean in means],
        yerr=[100 * (mean.std or 0) for mean in means],
        fmt='o-' if len(means) <= _DOTS else '-',
        ms=3,
        lw=1.4,
        elinewidth=0.6,
        color=_COLORS.get(label),
        label=textwrap.fill(label, 30),
    )
    if label in printed:
      curve = printed[label].curve
      style = {'ms': 6, 'lw': 0.6, 'color': line.get_color()}
      name = f'{label}, paper'
      axes.plot(curve.keys(), curve.values(), 'x--', label=name, **style)
  axes.set(xlabel='epoch', ylabel=f'validation {setting.score} (%)')
  axes.xaxis.get_major_locator().set_params(integer=True)
  if axes.has_data():
    axes.legend(frameon=False, loc='center left', bbox_to_anchor=(1.01, 0.5))
  return figure


def main(argv: Sequence[str] | None = None) -> int:
  """Writes the report and prints its path."""
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('dirs', metavar='DIR', nargs='+', type=pathlib.Path, help='see above')
  add(
      '--out',
      default='report',
      metavar='DIR',
      type=pathlib.Path,
      help='folder to write into (default: report)',
  )
  args = parser.parse_args(argv)
  try:
    print(write(args.dirs, args.out.expanduser()))
  except (UserError, OSError) as error:
    parser.error(str(error))
  return 0


if __name__ == '__main__':
  sys.exit(main())
