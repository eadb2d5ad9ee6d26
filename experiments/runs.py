"""Reads runs, and groups those that differ only in model and seed.

A run is read from its folder, or from the JSON file that `collect.py` made of
it. Runs need not be complete.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import os
import pathlib
import statistics
from typing import Any

import ablations
import collect
import ml_collections
import paper

from gswinrmt_jax import files, recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.models import cost
from gswinrmt_jax.models.dense import create
from gswinrmt_jax.runs import metrics_log, run_folder
from gswinrmt_jax.runs import scores as score_lib

# Folders inside a run that hold no runs.
_INNER = ('checkpoints', 'tensorboard', 'export')
_PARTS = ('config', 'summary', 'data', 'environment')
# The fields of the splits, and what prepared data call them.
_PREPARED = {'train_split': 'train', 'val_split': 'val', 'test_split': 'test'}
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
    data: Checksums of the order of its training and its validation images, its
      label maps and its test split; None where unknown, or not to be tested.
    device: Device of the last start; '' if unknown.
    images: How the images differ from the data set's own; '' if they do not.
    number: Its row in the report's table of all runs.
  """

  source: pathlib.Path
  config: ml_collections.ConfigDict
  epochs: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any] | None = None
  class_names: Sequence[str] = ()
  image_size: tuple[int, int] | None = None
  data: Sequence[str | None] = (None,) * 4
  device: str = ''
  images: str = ''
  number: int = 0

  @functools.cached_property
  def label(self) -> str:
    """The model, such as `retention,no_gate`."""
    return ablations.label(self.config.model)

  @property
  def epoch(self) -> int:
    """The last epoch that was validated; 0 if there is none."""
    return self.epochs[-1]['epoch'] if self.epochs else 0

  @property
  def length(self) -> tuple[str, int, int]:
    """'epoch' or 'step', how many are done, and how many the schedule has."""
    if not self.config.num_steps:
      return 'epoch', self.epoch, self.config.num_epochs
    step = self.epochs[-1]['step'] if self.epochs else 0
    return 'step', step, self.config.num_steps

  @property
  def progress(self) -> str:
    """How far it is: 'epoch 3 of 50', or 'step 6,000 of 80,000'."""
    unit, done, total = self.length
    return f'{unit} {done:,} of {total:,}'

  @property
  def finished(self) -> bool:
    """Whether the whole schedule was run and summarized."""
    summary = self.summary
    return bool(summary) and summary['steps'] >= summary['total_steps']

  @property
  def score(self) -> str:
    """The score that is reported, of the task and head."""
    if self.config.detector.head:
      return 'ap' if self.config.detector.head == 'retina' else 'mask_ap'
    return 'mean_iou' if self.config.segmenter.head else 'accuracy'

  @property
  def curve(self) -> dict[int, float]:
    """Validation score by epoch."""
    name = f'val_{self.score}'
    return {entry['epoch']: entry[name] for entry in self.epochs}

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
    return statistics.median(per_step) * last['step'] / last['epoch']

  @property
  def best_validation(self) -> float | None:
    """The best validation score, of the raw weights or of their average."""
    best = score_lib.best_epoch(self.epochs)[0] if self.epochs else -1.0
    return None if best < 0 else best  # -1: no loss was finite

  def tested(self, figure: str, which: str = 'last') -> float | None:
    """Returns a metric on the test split, None if it is not known.

    It is that of the last checkpoint's raw weights, or of the 'best' weights on
    validation data, which may be an average. It is None for an unfinished run,
    even if an earlier version wrote the metric: the test split is reserved for
    the end of the whole schedule.
    """
    if not self.finished:
      return None
    found = self.summary[which]
    average = which == 'best' and found.get('weights') == score_lib.EMA
    prefix = score_lib.PREFIX if average else ''
    return found.get(f'test_{prefix}{figure}')

  @functools.cached_property
  def cost(self) -> cost.Cost | None:
    """Parameters and multiply-accumulates; None without an image size."""
    if self.image_size is None:
      return None
    shape = (*self.image_size, 3)
    model = recipes.make_model(self.config, len(self.class_names), shape)
    return cost.count(model, self.image_size)


Figure = Callable[[Run], float | None]


def validation_at(epoch: int) -> Figure:
  """Returns the function from a run to its validation score at an epoch."""
  return lambda run: run.curve.get(epoch)


def gather(paths: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
  """Returns the runs below some folders, and a line for each unreadable one.

  Args:
    paths: Run folders, folders of them at any depth, JSON files written by
      `collect.py`, or folders of these.

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
        if run := read(source):
          runs.append(dataclasses.replace(run, number=len(runs) + 1))
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


def with_splits(
    config: ml_collections.ConfigDict, splits: Mapping[str, str]
) -> ml_collections.ConfigDict:
  """Returns a config with splits, by field, instead of 'auto'."""
  config = ml_collections.ConfigDict(config.to_dict()).lock()
  for field in _PREPARED:
    if config.data[field] == 'auto':
      config.data[field] = splits[field]
  return config


def read(source: pathlib.Path) -> Run | None:
  """Reads a run from its folder or from a file of `collect.py`.

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
  known = data or {}
  splits = known.get('splits', {})
  orders = [splits.get(name, {}).get('order') for name in ('train', 'val')]
  label_maps = known.get('label_maps', '') if splits else None
  test_split = config.data.test_split or None
  current = summary and epochs and summary['steps'] == epochs[-1]['step']
  return Run(
      source,
      config,
      epochs,
      summary=summary if current else None,
      class_names=tuple(data['class_names']) if data else (),
      image_size=tuple(data['image_size']) if data else None,
      data=(*orders, label_maps, test_split),
      device=(parts.get('environment') or [{'device': ''}])[-1]['device'],
      images=parts.get('images', ''),
  )


@dataclasses.dataclass(frozen=True)
class Setting:
  """Runs with the same training, on the same data.

  Attributes:
    title: Data set, how its images were changed, and size of the models.
    variants: For each model, by its label, one run per seed. The whole models
      are first, then the others by base and switch.
  """

  title: str
  variants: Mapping[str, Sequence[Run]]

  @property
  def runs(self) -> list[Run]:
    """All runs, variant by variant."""
    return [run for runs in self.variants.values() for run in runs]

  @property
  def config(self) -> ml_collections.ConfigDict:
    """Config of one run; all share it, except for seed and model."""
    return self.runs[0].config

  @property
  def recipe(self) -> paper.Benchmark | None:
    """The paper's benchmark whose models have this size."""
    if self.segments or self.detects:
      return None
    size = ablations.size_of(self.config.model.name)
    return {'compact': paper.CIFAR10, 'large': paper.MINI_IMAGENET}.get(size)

  @property
  def benchmark(self) -> paper.Benchmark | None:
    """The paper's results on the same data with the same sizes, if any."""
    data = self.config.data
    # Mini-ImageNet under any name, with its 100 classes if they are known.
    classes = len(self.runs[0].class_names)
    same_data = data.image_size == 224 and classes in (0, 100)
    if self.recipe is paper.CIFAR10:
      same_data = data.name == 'cifar10'
    resized = ablations.sizes(self.config.model)
    return self.recipe if same_data and not resized else None

  @property
  def segments(self) -> bool:
    """Whether the models are segmenters."""
    return bool(self.config.segmenter.head)

  @property
  def detects(self) -> bool:
    """Whether the models are detectors."""
    return bool(self.config.detector.head)

  @property
  def score(self) -> str:
    """The score of its runs, in words."""
    return score_lib.SCORES[self.runs[0].score].label

  @property
  def differences(self) -> list[str]:
    """The fields in which the protocol differs from our default reading."""
    make, splits = recipes.mini_imagenet, _PREPARED
    if self.recipe is paper.CIFAR10:
      make, own = recipes.cifar10, datasets.own_splits('cifar10')
      splits = {f'{split}_split': own[split] for split in own}
    ours = ml_collections.ConfigDict(self.config.to_dict())
    theirs = with_splits(make(self.config.model.name), splits)
    with theirs.unlocked():
      for config in (ours, theirs):
        del config['seed']
        trained = {name: config.model[name] for name in ablations.TRAINING}
        config.model = ml_collections.ConfigDict(trained)
    return run_folder.differences(theirs, ours)


def group(runs: Iterable[Run]) -> tuple[list[Setting], list[str]]:
  """Groups runs into settings.

  Returns:
    The settings, and a line for each run that is left out because another run
    with its seed got further.
  """
  found, settings, left_out = [], [], {}
  for run in sorted(runs, key=_progress, reverse=True):
    key = _setting_key(run)
    for other, members in found:
      if key == other and all(_same_sizes(run, one) for one in members):
        break
    else:
      members = []
      found.append((key, members))
    members.append(run)
  for _, members in sorted(found, key=lambda one: one[0]):
    variants = {}
    for run in members:
      seeds = variants.setdefault(run.label, {})
      counts = seeds.setdefault(run.config.seed, run)
      if counts is not run:
        left_out[run.number] = counts.number
    settings.append(_setting(variants))
  return settings, [
      f'[{number}] has the same seed as [{other}], which is used instead'
      for number, other in sorted(left_out.items())
  ]


def _progress(run):
  return run.finished, run.epoch


def _same_sizes(one, other):
  """Whether sizes that differ from either's named model are equal in both.

  RMT's FFN has ratio 3 and Retention's 4, for example, so a Retention with
  ratio 3 has the size of an unchanged RMT. If runs of one model with several
  sizes fit, the one that got furthest is taken.
  """
  first, second = one.config.model, other.config.model
  changed = ablations.sizes(first).keys() | ablations.sizes(second).keys()
  return all(first[name] == second[name] for name in changed)


def _setting_key(run):
  """Returns as text what comparable runs must share, apart from new sizes."""
  fields = run.config.to_dict()
  # Class folders may have moved; whether they are the same is in `Run.data`.
  collect.leave_out_places(fields)
  model = fields.pop('model')  # only its size and its training count
  for name in ('seed', *recipes.free_fields()):
    section, _, field = name.rpartition('.')
    (fields.get(section, {}) if section else fields).pop(field, None)
  fields |= {name: model[name] for name in ablations.TRAINING}
  size = ablations.size_of(model['name'])
  name, resized = fields['data']['name'], bool(ablations.sizes(model))
  shape = [list(run.image_size or ()), list(run.class_names)]
  return json.dumps(
      [name, run.images, size, resized, shape, fields, run.data],
      sort_keys=True,
  )


def _setting(variants):
  variants = {
      label: [run for _, run in sorted(variants[label].items())]
      for label in sorted(variants, key=_place)
  }
  first = next(iter(variants.values()))[0]
  config, images = first.config, f' ({first.images})' if first.images else ''
  size = ablations.size_of(config.model.name)
  title = f'{config.data.name}{images}, {size} models'
  if head := config.segmenter.head or config.detector.head:
    title += f' with {create.TITLES[head]}'
  if ablations.sizes(config.model):
    title += ', resized'
  return Setting(title, variants)


def _place(label):
  """Sort key: whole models first, the rest by base in the order of tables."""
  base, _, switch = label.partition(',')
  bases = list(ablations.SWITCHES)
  if base not in bases:
    return (2, len(bases), 0, label)
  names = list(ablations.SWITCHES[base])
  place = names.index(switch) if switch in names else 0
  return (int(bool(switch)), bases.index(base), place, label)
