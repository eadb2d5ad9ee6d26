"""Writes a report: `report.md` and its pictures."""

from collections.abc import Sequence
import pathlib
import re

from gswinrmt_jax import files
from gswinrmt_jax.experiments import (
    gather,
    markdown,
    missing,
    own_tables,
    paper_tables,
    setting_pictures,
    switches,
    variants,
)
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
      'in model and seed alone. Figures are means over the seeds that have '
      'them, with the standard deviation where there are several; in brackets '
      'is the number of the run in the list at the end. What is not measured '
      f'has a {markdown.NOTHING}. "Last" is the last epoch, which the paper '
      'reports, "best" the best on validation data. Test accuracy is of runs '
      "that finished the whole schedule. Intervals are those of Student's t "
      'over differences of the same seed, 95 %: what another seed would change '
      'is in them, what other test images would is not. Times of epochs are by '
      'the clock, whatever else the machine did.'
  )


def _section(setting: Setting, out: pathlib.Path, stem: str) -> list[str]:
  """Returns the parts of a setting, and draws its pictures."""
  parts = [f'## {setting.title}', _facts(setting)]
  if setting.benchmark:
    parts += _beside_the_paper(setting)
  else:
    parts += [
        '### Validation accuracy (%) by epoch',
        own_tables.curves(setting),
    ]
  parts += ['### All variants', own_tables.variants(setting)]
  parts += ['### Cost', own_tables.costs(setting)]
  note = own_tables.latency_note(setting)
  parts += [note] if note else []
  for base in switches.BASES:
    changes = own_tables.ablations(setting, base)
    if not changes:
      continue
    parts += [
        f'### {switches.BASES[base].label}, one component changed',
        own_tables.ablation_table(base, changes),
    ]
    found = [one.found for one in changes if one.found]
    known = sum(one.more_than_noise is not None for one in found)
    if known > 1:
      parts.append(
          f'Of {known} comparisons about {0.05 * known:.1g} are outside of '
          'their noise by chance alone.'
      )
  names = setting_pictures.write(setting, out, stem)
  return [*parts, '### Pictures', *(f'![{name}]({name})' for name in names)]


def _beside_the_paper(setting):
  benchmark = setting.benchmark
  return [
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
  """Returns data and protocol, and what of it is not the paper's."""
  config, recipe = setting.config, setting.recipe
  size = setting.variants[0].runs[0].image_size
  pixels = f' at {size[1]}x{size[0]}' if size else ''
  parts = [
      f'{config.num_epochs} epochs of {config.data.name}{pixels}, batch '
      f'{config.batch_size}, {config.dtype}, peak learning rate '
      f'{config.optimizer.learning_rate:g}.'
  ]
  sizes = switches.sizes(config.model).items()
  if sizes:
    listed = ', '.join(f'{field} {value}' for field, value in sizes)
    parts.append(f"Sizes that are not the named models': {listed}.")
  if config.data.test_split == config.data.val_split:
    parts.append('There is no test split: test figures are of validation data.')
  if recipe and setting.differences:
    listed = '; '.join(setting.differences)
    parts.append(f"Against the paper's recipe for {recipe.title}: {listed}.")
  elif recipe:
    parts.append(f"The protocol is the paper's recipe for {recipe.title}.")
  return ' '.join(parts)


def _list(lines):
  return '\n'.join(f'- {line}' for line in lines) or 'Nothing.'


def _runs(runs):
  return '\n'.join(
      f'{number}. `{run.source}`: `{switches.label(run.config.model)}`, '
      f'{run.config.data.name}, seed {run.config.seed}, epoch {run.epoch} of '
      f'{run.config.num_epochs}'
      for number, run in enumerate(runs, 1)
  )
