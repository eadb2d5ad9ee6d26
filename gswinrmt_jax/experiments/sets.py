"""Named sets of runs."""

from collections.abc import Callable, Mapping, Sequence
import fnmatch
import itertools
import pathlib
from typing import NamedTuple

import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.errors import did_you_mean, UserError
from gswinrmt_jax.experiments import switches


class Entry(NamedTuple):
  """One configuration of a set.

  Attributes:
    name: Its run folders are named `NAME_sSEED`.
    spec: The value of `--config`.
    overrides: Arguments `--config.FIELD=VALUE`.
  """

  name: str
  spec: str
  overrides: tuple[str, ...] = ()


class Job(NamedTuple):
  """One run of a set.

  Attributes:
    folder: Its run folder.
    arguments: Arguments of `gswinrmt train`.
    config: The resolved recipe, every field with its value.
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


# Such a run is mostly compilation, and most of that is for augmentation, of
# which the recipe of the digits has almost none.
_SMOKE = ('--config.num_epochs=4',)

# The windowed regime at laptop scale: 64-pixel images give 16 x 16 tokens, so
# that windows of 4 are a quarter of a side, as windows of 14 are at 224 pixels.
# The model has under a million parameters; few epochs need little augmentation.
_SMALL = (
    '--config.data.image_size=64',
    '--config.dtype=float32',
    '--config.model.widths=(24,48,96,192)',
    '--config.model.depths=(1,1,2,1)',
    '--config.model.num_heads=(1,2,3,6)',
    '--config.model.layer_scale=(0.0,0.0,0.0,0.0)',
    '--config.augment.crop_padding=4',
    '--config.optimizer.learning_rate=1e-3',
    '--config.optimizer.warmup_epochs=0.5',
    '--config.num_epochs=4',
)
_WINDOW = '--config.model.window_size=4'

_MODELS = ('rmt', 'retention', 'swat')

SETS: Mapping[str, tuple[Entry, ...]] = {
    'table5': tuple(Entry(name, f'cifar10_{name}') for name in _MODELS),
    'table3': tuple(Entry(name, f'mini_imagenet_{name}') for name in _MODELS),
    'table3-small': (
        Entry('rmt', 'mini_imagenet_rmt:plain', _SMALL),
        Entry('retention', 'mini_imagenet_retention:plain', (*_SMALL, _WINDOW)),
        Entry('swat', 'mini_imagenet_swat:plain', (*_SMALL, _WINDOW)),
    ),
    'ablation-cifar10': _ablations('', at_32=True),
    'ablation-mini': _ablations(',mini', at_32=False),
    'smoke': (
        *(Entry(name, f'digits_{name}:smoke', _SMOKE) for name in _MODELS),
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
    only: str = '*',
    load: Callable[[str, Sequence[str]], ml_collections.ConfigDict],
) -> list[Job]:
  """Returns the runs of a set: every entry with seed 0, then with seed 1, etc.

  Args:
    name: A key of `SETS`.
    out: Run folders are `OUT/NAME/RUN_sSEED`.
    seeds: Number of seeds, starting from 0.
    overrides: Arguments `--config.FIELD=VALUE` for every run.
    only: Names of the set's entries, separated by commas; `*` matches any
      characters.
    load: Returns the recipe for a value of `--config` and overrides.

  Raises:
    UserError: If there is no such set or entry, or a recipe does not take an
      override.
  """
  if name not in SETS:
    near = did_you_mean(name, SETS) or f'; there are {", ".join(SETS)}'
    raise UserError(f"no experiment '{name}'{near}")
  entries = _chosen(SETS[name], only)
  for override in overrides:
    if override.partition('=')[0].lstrip('-') == 'config.seed':
      raise UserError(f'{override}: --seeds sets the seeds of an experiment')
  found = []
  for seed, entry in itertools.product(range(seeds), entries):
    fields = (*entry.overrides, *overrides, f'--config.seed={seed}')
    folder = out / name / f'{entry.name}_s{seed}'
    words = (f'--config={entry.spec}', f'--workdir={folder}', *fields)
    config = recipes.resolve(load(entry.spec, fields))
    found.append(Job(folder, words, config))
  return found


def _chosen(entries, only):
  """Returns the entries whose names match one of the patterns, in order."""
  names, chosen = [entry.name for entry in entries], set()
  for pattern in only.split(','):
    matching = fnmatch.filter(names, pattern.strip())
    if not matching:
      raise UserError(
          f"no run '{pattern.strip()}' in the set; there are "
          f'{", ".join(names)}'
      )
    chosen.update(matching)
  return [entry for entry in entries if entry.name in chosen]
