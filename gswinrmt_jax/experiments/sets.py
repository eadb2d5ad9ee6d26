"""Named sets of runs, as data, and the runs that they ask for."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import pathlib

import ml_collections

from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import switches
from gswinrmt_jax.training import build


@dataclasses.dataclass(frozen=True)
class Entry:
  """One configuration of a set.

  Attributes:
    name: Its run folders are `NAME_sSEED`.
    spec: What stands behind `--config=`.
    overrides: `--config.FIELD=VALUE`.
  """

  name: str
  spec: str
  overrides: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
  """One run of a set.

  Attributes:
    folder: Its run folder.
    arguments: Of `gswinrmt train`.
    config: What these come to, every field with its value.
  """

  folder: pathlib.Path
  arguments: tuple[str, ...]
  config: ml_collections.ConfigDict


def _ablations(argument: str, *, at_32: bool) -> tuple[Entry, ...]:
  return tuple(
      Entry(f'{base}_{name}', f'ablation:{base},{name}{argument}')
      for base, table in switches.SWITCHES.items()
      for name, switch in table.items()
      if not (at_32 and switch.idle)
  )


# Compiling is most of such a run, and augmentation most of that: the recipe of
# the digits has next to none.
_SMOKE = ('--config.num_epochs=4',)

SETS: Mapping[str, tuple[Entry, ...]] = {
    'table5': tuple(
        Entry(name, f'cifar10_{name}') for name in ('rmt', 'retention', 'swat')
    ),
    'table3': tuple(
        Entry(name, f'mini_imagenet_{name}')
        for name in ('rmt', 'retention', 'swat')
    ),
    'ablation-cifar10': _ablations('', at_32=True),
    'ablation-mini': _ablations(',mini', at_32=False),
    'smoke': (
        Entry('rmt', 'digits_rmt:smoke', _SMOKE),
        Entry('retention', 'digits_retention:smoke', _SMOKE),
        Entry('swat', 'digits_swat:smoke', _SMOKE),
        Entry(
            'retention_no_gate',
            'digits_retention:smoke',
            (*_SMOKE, '--config.model.gate=False'),
        ),
    ),
}


def jobs(
    name: str,
    out: pathlib.Path,
    *,
    seeds: int,
    overrides: Sequence[str],
    load: Callable[[str, Sequence[str]], ml_collections.ConfigDict],
) -> list[Job]:
  """Returns the runs of a set, seed by seed: each round has every variant.

  Args:
    name: In `SETS`.
    out: Run folders are `OUT/NAME/RUN_sSEED`.
    seeds: How many, from 0.
    overrides: `--config.FIELD=VALUE`, for every run.
    load: From what stands behind `--config=`, and overrides, to a recipe.

  Raises:
    UserError: If there is no such set, or a recipe does not take an override.
  """
  if name not in SETS:
    raise UserError(f"no experiment '{name}': {', '.join(SETS)}")
  for override in overrides:
    if override.partition('=')[0].lstrip('-') == 'config.seed':
      raise UserError(f'{override}: the seeds of an experiment are --seeds')
  found = []
  for seed in range(seeds):
    for entry in SETS[name]:
      fields = (*entry.overrides, *overrides, f'--config.seed={seed}')
      folder = out / name / f'{entry.name}_s{seed}'
      found.append(
          Job(
              folder,
              (f'--config={entry.spec}', f'--workdir={folder}', *fields),
              build.resolve(load(entry.spec, fields)),
          )
      )
  return found
