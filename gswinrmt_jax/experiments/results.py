"""Reads runs and groups them: seeds into variants, variants into settings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import os
import pathlib
import statistics as stats
from typing import Any

import ml_collections

from gswinrmt_jax import files, recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.experiments import paper, switches
from gswinrmt_jax.experiments.statistics import Mean
from gswinrmt_jax.models import cost
from gswinrmt_jax.models.dense import segmenter
from gswinrmt_jax.runs import metrics_log, run_folder
from gswinrmt_jax.runs import summary as summary_lib

# Folders inside a run that hold no runs.
_INNER = ('checkpoints', 'tensorboard', 'export')
_PARTS = ('config', 'summary', 'data', 'latency', 'environment')
# Exceptions that reading a damaged file may raise.
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError)


@dataclasses.dataclass(frozen=True)
class Run:
  """The results of one run.

  Attributes:
    source: Its folder, or the JSON file it was collected in.
    config: Resolved config, every field with its value.
    epochs: Entries of `metrics.jsonl` of kind 'epoch'.
    summary: Contents of `summary.json`; None unless it is of the last epoch.
    class_names: Names of the classes; empty if unknown.
    image_size: Height and width; None if unknown.
    latency_of: Contents of `latency.json`: milliseconds, their spread, dtype,
      device, threads and versions; empty if not measured.
    device: Device of the last start; '' if unknown.
  """

  source: pathlib.Path
  config: ml_collections.ConfigDict
  epochs: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any] | None = None
  class_names: Sequence[str] = ()
  image_size: tuple[int, int] | None = None
  latency_of: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  device: str = ''

  @property
  def epoch(self) -> int:
    """The last epoch that was validated; 0 if there is none."""
    return self.epochs[-1]['epoch'] if self.epochs else 0

  @property
  def progress(self) -> str:
    """How far it is: 'epoch 3 of 50', or 'step 6,000 of 80,000'."""
    unit, done, total = self.length
    return f'{unit} {done:,} of {total:,}'

  @property
  def length(self) -> tuple[str, int, int]:
    """'epoch' or 'step', how many are done, and how many the schedule has."""
    if not self.config.num_steps:
      return 'epoch', self.epoch, self.config.num_epochs
    step = self.epochs[-1]['step'] if self.epochs else 0
    return 'step', step, self.config.num_steps

  @property
  def finished(self) -> bool:
    """Whether the whole schedule was run and summarized."""
    summary = self.summary
    return bool(summary) and summary['steps'] >= summary['total_steps']

  @property
  def score(self) -> str:
    """The score that is reported: 'accuracy', or 'mean_iou' of a segmenter."""
    return 'mean_iou' if self.config.segmenter.head else 'accuracy'

  @property
  def curve(self) -> dict[int, float]:
    """Validation score by epoch."""
    name = f'val_{self.score}'
    return {entry['epoch']: entry[name] for entry in self.epochs}

  @property
  def latency(self) -> float | None:
    """Milliseconds for one image; None if not measured."""
    return self.latency_of.get('milliseconds')

  @property
  def final_validation(self) -> float | None:
    """Validation score at the end of the whole schedule."""
    return self.curve[self.epoch] if self.finished else None

  @property
  def test_score(self) -> float | None:
    """Test score of the last checkpoint."""
    return self.tested(self.score)

  @property
  def gap(self) -> float | None:
    """Validation minus test score of the last checkpoint, if tested."""
    tested, data = self.test_score, self.config.data
    if tested is None or data.test_split == data.val_split:
      return None
    return self.final_validation - tested

  @property
  def seconds_per_epoch(self) -> float | None:
    """Median over epochs; a summary lacks it if its log had no epochs."""
    if self.summary and 'seconds_per_epoch' in self.summary:
      return self.summary['seconds_per_epoch']
    if not self.epochs:
      return None
    # An entry covers the steps since the validation before it.
    per_step = [entry['seconds'] / entry['steps'] for entry in self.epochs]
    last = self.epochs[-1]
    return stats.median(per_step) * last['step'] / last['epoch']

  def tested(self, figure: str, which: str = 'last') -> float | None:
    """Returns a metric of the last or best checkpoint on the test split.

    Returns None for an unfinished run, even if an earlier version wrote the
    metric: the test split is reserved for the end of the whole schedule.
    """
    return self.summary[which].get(f'test_{figure}') if self.finished else None


Figure = Callable[[Run], float | None]


def validation_at(epoch: int) -> Figure:
  """Returns the function from a run to its validation score at an epoch."""
  return lambda run: run.curve.get(epoch)


def gather(paths: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
  """Returns the runs below some folders, and a line for each unreadable one.

  Args:
    paths: Run folders, folders of them at any depth, JSON files written by
      `results/collect.py`, or folders of these.

  Raises:
    UserError: If a path does not exist, or there is no run at all.
  """
  runs, problems, seen = [], [], set()
  for path in paths:
    if not path.exists():
      raise UserError(f'{path}: no such file or folder')
    for source in _sources(path):
      if source.resolve() in seen:
        continue
      seen.add(source.resolve())
      try:
        runs += filter(None, [read(source)])
      except UserError as error:
        problems.append(str(error))
  if not runs:
    where = ', '.join(str(path) for path in paths)
    hint = '; '.join(problems) or 'name run folders, or folders of them'
    raise UserError(f'there is no run in {where}: {hint}')
  return runs, problems


def _sources(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields run folders and JSON files, sorted by name."""
  if path.is_file():
    yield path
    return
  for place, folders, names in os.walk(path):
    here = pathlib.Path(place)
    if 'config.json' in names:
      # A folder of weights has a config.json, too.
      if 'metrics.jsonl' in names:
        yield here
      folders[:] = sorted(set(folders) - set(_INNER))
      continue
    folders.sort()
    yield from (here / name for name in sorted(names) if name.endswith('.json'))


def read(source: pathlib.Path) -> Run | None:
  """Reads a run from its folder or from a file of `results/collect.py`.

  Returns None for a JSON file with other contents.

  Raises:
    UserError: If a file is damaged; the message names it or the source.
  """
  try:
    return _read(source)
  except _DAMAGED as error:
    said = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise UserError(f'{source} cannot be read: {said}') from error


def _read(source):
  if source.is_file():
    parts = files.read_json(source)
    if not isinstance(parts, dict) or not {'config', 'epochs'} <= parts.keys():
      return None
  else:
    parts = {
        name: files.read_json(path)
        for name in _PARTS
        if (path := source / f'{name}.json').exists()
    }
    entries = metrics_log.read_metrics(source)
    parts['epochs'] = [one for one in entries if one['kind'] == 'epoch']
  config = recipes.from_json(parts['config'], str(source))
  epochs = parts['epochs']
  data, summary = parts.get('data'), parts.get('summary')
  if data is None and config.data.name in datasets.NAMES:
    data = dataclasses.asdict(datasets.info(config.data.name))
  if summary is not None:
    summary_lib.check(summary, str(source))
  current = summary and epochs and summary['steps'] == epochs[-1]['step']
  run = Run(
      source,
      config,
      epochs,
      summary=summary if current else None,
      class_names=tuple(data['class_names']) if data else (),
      image_size=tuple(data['image_size']) if data else None,
      latency_of=parts.get('latency') or {},
      device=(parts.get('environment') or [{'device': ''}])[-1]['device'],
  )
  _check_scores(run)
  return run


def _check_scores(run):
  """Raises UserError if a score that reports need is no number."""
  scores = [entry.get(f'val_{run.score}') for entry in run.epochs]
  by_class = run.tested('class_iou', 'best')
  if by_class is not None:
    if len(by_class) != len(run.class_names):
      raise UserError(
          f'{run.source}: {len(by_class)} scores by class, '
          f'{len(run.class_names)} classes'
      )
    scores += [score for score in by_class if score is not None]
  for score in scores:
    if not isinstance(score, (int, float)):
      raise UserError(f'{run.source}: {score!r} is not a score')


@dataclasses.dataclass(frozen=True)
class Variant:
  """One model in one setting.

  Attributes:
    label: Such as `retention,no_gate`; the base alone if nothing is changed.
    runs: One run per seed.
    numbers: Numbers of the runs in the report's list.
  """

  label: str
  runs: Sequence[Run]
  numbers: Sequence[int]

  @property
  def base(self) -> str:
    """The base that it belongs to."""
    return self.label.partition(',')[0]

  @property
  def switch(self) -> str:
    """The switch that changes the base; '' for none."""
    return self.label.partition(',')[2]

  @property
  def epochs(self) -> list[int]:
    """All epochs at which at least one run was validated."""
    return sorted({epoch for run in self.runs for epoch in run.curve})

  def by_seed(self, figure: Figure) -> dict[int, float]:
    """Returns a figure by seed, for the runs that have it."""
    found = {run.config.seed: figure(run) for run in self.runs}
    return {seed: value for seed, value in found.items() if value is not None}

  def mean(self, figure: Figure) -> Mean | None:
    """Returns the mean of a figure over the runs that have it."""
    return Mean.of(self.by_seed(figure).values())

  @functools.cached_property
  def cost(self) -> cost.Cost | None:
    """Parameters and multiply-accumulates; None without an image size."""
    known = [run for run in self.runs if run.image_size]
    if not known:
      return None
    run = known[0]
    model = recipes.make_model(
        run.config, len(run.class_names), (*run.image_size, 3)
    )
    return cost.count(model, run.image_size)

  @property
  def macs(self) -> float | None:
    """Multiply-accumulates in units of 2^30, as in RMT's tables."""
    return self.cost and self.cost.macs / 2**30


@dataclasses.dataclass(frozen=True)
class Setting:
  """Variants with the same training, on the same data.

  Attributes:
    title: Data set and size of the models.
    config: Config of one run; all runs share it except for seed and model. The
      initialisation, `switches.TRAINING`, is shared, too.
    variants: The whole models first, then by base and switch.
  """

  title: str
  config: ml_collections.ConfigDict
  variants: Sequence[Variant]

  def find(self, label: str) -> Variant | None:
    """Returns the variant with that label."""
    return next((one for one in self.variants if one.label == label), None)

  @property
  def benchmark(self) -> paper.Benchmark | None:
    """The paper's results on the same data with the same sizes, if any."""
    data = self.config.data
    same_data = data.image_size == 224
    if self.recipe is paper.CIFAR10:
      same_data = data.name == 'cifar10'
    resized = switches.sizes(self.config.model)
    return self.recipe if same_data and not resized else None

  @property
  def recipe(self) -> paper.Benchmark | None:
    """The paper's benchmark whose models have this size."""
    if self.segments:
      return None
    size = self.config.model.name.rpartition('_')[2]
    return {'compact': paper.CIFAR10, 'large': paper.MINI_IMAGENET}.get(size)

  @property
  def segments(self) -> bool:
    """Whether the models are segmenters."""
    return bool(self.config.segmenter.head)

  @property
  def score(self) -> str:
    """The score of its runs, in words."""
    return 'mean IoU' if self.segments else 'accuracy'

  @property
  def differences(self) -> list[str]:
    """The fields in which the protocol differs from our default reading."""
    cifar10 = self.recipe is paper.CIFAR10
    make = recipes.cifar10 if cifar10 else recipes.mini_imagenet
    ours = ml_collections.ConfigDict(self.config.to_dict())
    theirs = make(self.config.model.name)
    with theirs.unlocked():
      for config in (ours, theirs):
        del config['seed']
        trained = {name: config.model[name] for name in switches.TRAINING}
        config.model = ml_collections.ConfigDict(trained)
    return run_folder.differences(theirs, ours)


def group(runs: Iterable[Run]) -> tuple[list[Setting], list[str]]:
  """Groups runs into settings.

  Args:
    runs: In the order of the report's list, which numbers them from 1.

  Returns:
    The settings, and a line for each run that is left out because another run
    with its seed got further.
  """
  found, left_out = [], {}
  furthest_first = sorted(
      enumerate(runs, 1),
      key=lambda one: (one[1].finished, one[1].epoch),
      reverse=True,
  )
  for number, run in furthest_first:
    variants = _variants_for(run, found)
    seeds = variants.setdefault(switches.label(run.config.model), {})
    counts, other = seeds.setdefault(run.config.seed, (run, number))
    if counts is not run:
      left_out[number] = other
  found.sort(key=lambda one: one[0])
  settings = [_make_setting(variants) for _, variants in found]
  return settings, [
      f'[{number}] has the same seed as [{other}], which is used instead'
      for number, other in sorted(left_out.items())
  ]


def _variants_for(run, found):
  """Returns the variants of the run's setting, which it adds if it is new."""
  key = _setting_key(run)
  for other, variants in found:
    members = (one for seeds in variants.values() for one, _ in seeds.values())
    if other == key and all(_same_sizes(run, one) for one in members):
      return variants
  found.append((key, {}))
  return found[-1][1]


def _same_sizes(one, other):
  """Whether sizes that differ from either's named model are equal in both.

  RMT's FFN has ratio 3 and Retention's 4, for example, so a Retention with
  ratio 3 has the size of an unchanged RMT. If runs of one model with several
  sizes fit, the one that got furthest is taken.
  """
  first, second = one.config.model, other.config.model
  changed = switches.sizes(first).keys() | switches.sizes(second).keys()
  return all(first[name] == second[name] for name in changed)


def _setting_key(run):
  """Returns as text what comparable runs must share, apart from new sizes."""
  fields = run.config.to_dict()
  model = fields.pop('model')  # only its size and its training count
  for name in ('seed', *recipes.free_fields()):
    section, _, field = name.rpartition('.')
    (fields.get(section, {}) if section else fields).pop(field, None)
  fields |= {name: model[name] for name in switches.TRAINING}
  size = model['name'].rpartition('_')[2]
  resized = bool(switches.sizes(model))
  shape = [list(run.image_size or ()), list(run.class_names)]
  return json.dumps(
      [fields['data']['name'], size, resized, shape, fields],
      sort_keys=True,
  )


def _make_setting(variants):
  made = []
  for label, seeds in variants.items():
    runs, numbers = zip(*(seeds[seed] for seed in sorted(seeds)), strict=True)
    made.append(Variant(label, runs, numbers))
  made.sort(key=_order)
  config = made[0].runs[0].config
  size = config.model.name.rpartition('_')[2]
  title = f'{config.data.name}, {size} models'
  if config.segmenter.head:
    title += f' with {segmenter.TITLES[config.segmenter.head]}'
  if switches.sizes(config.model):
    title += ', resized'
  return Setting(title, config, made)


def _order(variant):
  """Sort key: whole models first, the rest by base in the order of tables."""
  bases = list(switches.SWITCHES)
  if variant.base not in bases:
    return (2, len(bases), 0, variant.label)
  names = list(switches.SWITCHES[variant.base])
  place = names.index(variant.switch) if variant.switch in names else 0
  base = bases.index(variant.base)
  return (int(bool(variant.switch)), base, place, variant.label)
