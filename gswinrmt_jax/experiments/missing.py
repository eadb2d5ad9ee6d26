"""What a report cannot say yet, and what would make it."""

from collections.abc import Iterable

from gswinrmt_jax.experiments import markdown, own_tables, switches
from gswinrmt_jax.experiments.variants import Setting


def lines(setting: Setting) -> list[str]:
  """Returns a line for each thing that is missing of a setting."""
  return [
      f'{setting.title}: {line}'
      for found in (
          _models(setting),
          _runs(setting),
          _seeds(setting),
          _bases(setting),
          _switches(setting),
          _cost(setting),
          _latency(setting),
      )
      for line in found
  ]


def _models(setting) -> Iterable[str]:
  for base in setting.benchmark.models if setting.benchmark else ():
    if not setting.find(base):
      yield f'no run of {switches.BASES[base].label}'


def _runs(setting):
  for variant in setting.variants:
    for run, number in zip(variant.runs, variant.numbers, strict=True):
      if not run.finished:
        what = f'epoch {run.epoch} of {run.config.num_epochs}'
        if run.epoch == run.config.num_epochs:
          what += ', not tested'
        yield f'`{variant.label}`, seed {run.config.seed}: {what} [{number}]'


def _seeds(setting):
  alone = [f'`{one.label}`' for one in setting.variants if len(one.runs) == 1]
  if alone:
    yield f'one seed, so no deviation and no interval: {", ".join(alone)}'


def _bases(setting):
  for base in switches.BASES:
    for change in own_tables.ablations(setting, base):
      if change.found is None:
        numbers = markdown.numbers(change.variant.numbers)
        yield f'`{change.variant.label}` has nothing to compare with {numbers}'


def _switches(setting):
  """Names those of a base of which some were run."""
  at_32 = setting.variants[0].runs[0].image_size == (32, 32)
  for base, table in switches.SWITCHES.items():
    run = {
        change.variant.label for change in own_tables.ablations(setting, base)
    }
    absent = [
        f'`{name}`'
        for name, switch in table.items()
        if name != switches.BASE and f'{base},{name}' not in run
        if not (at_32 and switch.idle)
    ]
    if run and absent:
      yield f'switches of {base} without a run: {", ".join(absent)}'


def _cost(setting):
  alone = [f'`{one.label}`' for one in setting.variants if not one.cost]
  if alone:
    yield f'image size unknown (no data.json), so no cost: {", ".join(alone)}'


def _latency(setting):
  if all(run.latency is None for one in setting.variants for run in one.runs):
    yield 'latency is not measured'
