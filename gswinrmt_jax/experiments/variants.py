"""Runs put together: those that differ in the seed alone, and their setting."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import json

import ml_collections

from gswinrmt_jax import recipes
from gswinrmt_jax.experiments import paper, switches
from gswinrmt_jax.experiments.gather import Run
from gswinrmt_jax.experiments.statistics import Mean
from gswinrmt_jax.models import cost, factory
from gswinrmt_jax.runs import run_folder

_NAMED = tuple(switches.BASES)


@dataclasses.dataclass(frozen=True)
class Variant:
  """One model in one setting.

  Attributes:
    label: `retention,no_gate`; its base alone for what changes nothing.
    runs: By seed, one each.
    numbers: Of the runs, in the report's list.
  """

  label: str
  runs: Sequence[Run]
  numbers: Sequence[int]

  @property
  def base(self) -> str:
    """The base that it belongs to."""
    return self.label.partition(',')[0]

  def by_seed(self, figure: Callable[[Run], float | None]) -> dict[int, float]:
    """Returns a figure of each run that has it."""
    found = {run.config.seed: figure(run) for run in self.runs}
    return {seed: value for seed, value in found.items() if value is not None}

  def mean(self, figure: Callable[[Run], float | None]) -> Mean | None:
    """Returns the mean of a figure over the runs that have it."""
    return Mean.of(list(self.by_seed(figure).values()))

  @property
  def epochs(self) -> list[int]:
    """Every epoch that some run was validated at."""
    return sorted({epoch for run in self.runs for epoch in run.curve})

  @functools.cached_property
  def cost(self) -> cost.Cost | None:
    """Parameters and multiply-accumulates; None without the image size."""
    config = self.runs[0].config
    known = [run for run in self.runs if run.image_size]
    if not known:
      return None
    fields = {key: of for key, of in config.model.items() if key != 'name'}
    model = factory.create_model(
        config.model.name, num_classes=known[0].num_classes, **fields
    )
    return cost.count(model, known[0].image_size)


@dataclasses.dataclass(frozen=True)
class Setting:
  """Variants that were trained alike, on the same data.

  Attributes:
    title: Data set and size of the models.
    config: Of one run; all but model and seed is that of every run.
    variants: The whole models first, then by base and switch.
  """

  title: str
  config: ml_collections.ConfigDict
  variants: Sequence[Variant]

  def find(self, label: str) -> Variant | None:
    """Returns the variant of that label."""
    found = [one for one in self.variants if one.label == label]
    return found[0] if found else None

  @property
  def benchmark(self) -> paper.Benchmark | None:
    """The paper's figures that belong beside these, if any do."""
    config, recipe = self.config, self.recipe
    if switches.sizes(config.model):
      return None
    if recipe is paper.CIFAR10 and config.data.name == 'cifar10':
      return recipe
    if recipe is paper.MINI_IMAGENET and config.data.image_size == 224:
      return recipe
    return None

  @property
  def recipe(self) -> paper.Benchmark | None:
    """That of the paper's whose models were of this size."""
    size = self.config.model.name.rpartition('_')[2]
    return {'compact': paper.CIFAR10, 'large': paper.MINI_IMAGENET}.get(size)

  @property
  def differences(self) -> list[str]:
    """In which fields the protocol is not the recipe of the paper's."""
    make = {
        paper.CIFAR10.title: recipes.cifar10,
        paper.MINI_IMAGENET.title: recipes.mini_imagenet,
    }
    ours = ml_collections.ConfigDict(self.config.to_dict())
    theirs = make[self.recipe.title](self.config.model.name)
    with theirs.unlocked():
      for config in (ours, theirs):
        del config['model'], config['seed']
    return run_folder.differences(theirs, ours)


def group(runs: Iterable[Run]) -> tuple[list[Setting], list[str]]:
  """Puts runs together.

  Args:
    runs: In the order of the report's list, which numbers them from 1.

  Returns:
    The settings, and a line for each run that another one of its seed stands
    for: the one that got further.
  """
  found, passed_over = {}, []
  for number, run in enumerate(runs, 1):
    variants = found.setdefault(_setting_key(run), {})
    seeds = variants.setdefault(switches.label(run.config.model), {})
    seed = run.config.seed
    if seed not in seeds:
      seeds[seed] = (run, number)
      continue
    kept, dropped = seeds[seed], (run, number)
    if (run.finished, run.epoch) > (kept[0].finished, kept[0].epoch):
      kept, dropped = dropped, kept
    seeds[seed] = kept
    passed_over.append(
        f'[{dropped[1]}] is of the same seed as [{kept[1]}], which counts'
    )
  settings = [_make_setting(variants) for _, variants in sorted(found.items())]
  return settings, passed_over


def _make_setting(variants):
  made = [
      Variant(
          label,
          [run for _, (run, _) in sorted(seeds.items())],
          [number for _, (_, number) in sorted(seeds.items())],
      )
      for label, seeds in variants.items()
  ]
  made.sort(key=_order)
  config = made[0].runs[0].config
  size = config.model.name.rpartition('_')[2]
  words = f'{config.data.name}, {size} models'
  if switches.sizes(config.model):
    words += ', resized'
  return Setting(words, config, made)


def _order(variant):
  """Whole models first; the rest by base, in the order of the tables."""
  base, _, switch = variant.label.partition(',')
  if base not in switches.SWITCHES:
    return (2, len(_NAMED), 0, variant.label)
  names = list(switches.SWITCHES[base])
  place = names.index(switch) if switch in names else 0
  return (int(bool(switch)), _NAMED.index(base), place, variant.label)


def _setting_key(run):
  """What runs have to share to be compared, as text."""
  fields = run.config.to_dict()
  # Of the model count the size and `sizes`: its free fields go with it here.
  model = fields.pop('model')
  for name in ('seed', *recipes.free_fields()):
    section, _, field = name.rpartition('.')
    (fields.get(section, {}) if section else fields).pop(field, None)
  size = model['name'].rpartition('_')[2]
  shape = [list(run.image_size or ()), run.num_classes]
  return json.dumps(
      [fields['data']['name'], size, switches.sizes(model), shape, fields],
      sort_keys=True,
  )
