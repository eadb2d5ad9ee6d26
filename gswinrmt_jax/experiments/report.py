"""Writes a report: `report.md` and its plots."""

from collections.abc import Iterator, Sequence
import pathlib
import re

from gswinrmt_jax import files
from gswinrmt_jax.experiments import charts, results, switches, tables
from gswinrmt_jax.experiments.results import Setting

_OPTIMIZERS = {'adamw': 'AdamW', 'muon': 'Muon'}


def write(paths: Sequence[pathlib.Path], out: pathlib.Path) -> pathlib.Path:
  """Writes a report on the runs in `paths`; returns the path of `report.md`.

  Raises:
    UserError: If there are no runs.
  """
  runs, problems = results.gather(paths)
  settings, left_out = results.group(runs)
  out.mkdir(parents=True, exist_ok=True)
  parts = ['# Report', _legend(runs, settings)]
  for number, setting in enumerate(settings):
    same = [one.title for one in settings[:number]].count(setting.title)
    stem = re.sub(r'\W+', '_', setting.title) + (f'_{same + 1}' if same else '')
    parts += _section(setting, out, stem)
  absent = [f'{one.title}: {line}' for one in settings for line in missing(one)]
  lines = [f'- {line}' for line in (*absent, *problems, *left_out)]
  parts += ['## What is missing', '\n'.join(lines) or 'Nothing.']
  parts += ['## Runs', _runs(runs)]
  path = out / 'report.md'
  files.write_text(path, '\n\n'.join(parts) + '\n')
  return path


def _legend(runs, settings):
  return (
      f'Runs: {len(runs)}; settings: {len(settings)}. Runs of a setting differ '
      'only in model and seed; initialisation belongs to the setting. Numbers '
      'are means over the seeds that have them, with the standard deviation if '
      'there are several seeds. A number in brackets refers to the list of '
      'runs at the end. '
      f'{tables.NOTHING} means not measured. "Last" is the last epoch, which '
      'the paper reports; "best" is the best epoch on validation data. Test '
      'scores are those of runs that finished the whole schedule. '
      "Intervals are 95 % intervals of Student's t over differences between "
      'runs of the same seed. They cover variation between seeds, but not '
      'between test images, and one in twenty excludes 0 by chance. Epoch '
      'times are wall-clock times, including any other load on the machine.'
  )


def _section(setting: Setting, out: pathlib.Path, stem: str) -> list[str]:
  """Returns the sections of a setting and draws its plots."""
  parts = [f'## {setting.title}', _protocol(setting)]
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
  if setting.segments and (by_class := tables.classes(setting)):
    parts += ['### Test IoU (%) by class, best epoch', by_class]
  parts += ['### Cost', tables.costs(setting)]
  note = tables.latency_note(setting)
  parts += [note] if note else []
  for base, model in switches.BASES.items():
    if changes := tables.ablations(setting, base):
      parts.append(f'### {model.label}, one component changed')
      parts.append(tables.ablation_table(base, changes))
  names = charts.draw(setting, out, stem)
  return [*parts, '### Plots', *(f'![{name}]({name})' for name in names)]


def _protocol(setting):
  """Describes data and protocol, and their differences from the paper's."""
  config, recipe = setting.config, setting.recipe
  size = setting.variants[0].runs[0].image_size
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
  sizes = {}
  for one in setting.variants:
    sizes |= switches.sizes(one.runs[0].config.model)
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
    if not setting.find(base):
      yield f'no run of {switches.BASES[base].label}'
  for one in setting.variants:
    for run, number in zip(one.runs, one.numbers, strict=True):
      if not run.finished:
        _, done, total = run.length
        what = run.progress + (', not tested' if done == total else '')
        yield f'`{one.label}`, seed {run.config.seed}: {what} [{number}]'
  for base in switches.BASES:
    for change in tables.ablations(setting, base):
      if not change.change:
        numbers = tables.references(change.variant.numbers)
        yield f'`{change.variant.label}` {numbers} has no run to compare with'


def _runs(runs):
  return '\n'.join(
      f'{number}. `{run.source}`: `{switches.label(run.config.model)}`, '
      f'{run.config.data.name}, seed {run.config.seed}, {run.progress}'
      for number, run in enumerate(runs, 1)
  )
