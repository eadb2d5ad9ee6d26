"""Finds runs, in their folders or as collected JSON, and reads them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import os
import pathlib
import statistics
from typing import Any

import ml_collections

from gswinrmt_jax import files, recipes
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError
from gswinrmt_jax.runs import metrics_log
from gswinrmt_jax.runs import summary as closing

# Folders inside of a run that hold no runs.
_INNER = ('checkpoints', 'tensorboard', 'export')
# What reading files raises that are not as they should be.
_DAMAGED = (
    UserError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
)


@dataclasses.dataclass(frozen=True)
class Run:
  """What is read of a run.

  Attributes:
    source: Its folder, or the JSON file it was collected in.
    config: Every field with its value.
    epochs: Entries of `metrics.jsonl` of kind 'epoch'.
    summary: If it is that of the last epoch.
    num_classes: None if nobody wrote it down.
    image_size: Height and width, likewise.
    latency: Milliseconds of `latency.json`; None: not measured.
    latency_of: What else that file has: device, threads, dtype, spread.
    device: Of the last start, '' if unknown.
  """

  source: pathlib.Path
  config: ml_collections.ConfigDict
  epochs: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any] | None = None
  num_classes: int | None = None
  image_size: tuple[int, int] | None = None
  latency: float | None = None
  latency_of: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  device: str = ''

  @property
  def epoch(self) -> int:
    """The last validated."""
    return self.epochs[-1]['epoch'] if self.epochs else 0

  @property
  def finished(self) -> bool:
    """Whether the whole schedule was run, and what was measured summed up."""
    summary = self.summary
    return bool(summary) and summary['steps'] >= summary['total_steps']

  @property
  def curve(self) -> dict[int, float]:
    """Validation accuracy by epoch."""
    return {entry['epoch']: entry['val_accuracy'] for entry in self.epochs}

  def tested(self, figure: str, which: str = 'last') -> float | None:
    """Returns a figure of the last or best checkpoint on the test split.

    A run that was not finished has none, even if an earlier version wrote one:
    the test split is for the end of the whole schedule.
    """
    return self.summary[which].get(f'test_{figure}') if self.finished else None

  @property
  def seconds_per_epoch(self) -> float | None:
    """The median; a summary has none if the log had no epochs."""
    if self.summary and 'seconds_per_epoch' in self.summary:
      return self.summary['seconds_per_epoch']
    seconds = [entry['seconds'] for entry in self.epochs]
    return statistics.median(seconds) if seconds else None


def gather(paths: Iterable[pathlib.Path]) -> tuple[list[Run], list[str]]:
  """Returns the runs below some folders, and what could not be read.

  Args:
    paths: Run folders, folders of them at any depth, folders of JSON files that
      `results/collect.py` made, or such files.

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
        run = _read(source)
      except UserError as error:  # says of which file
        problems.append(str(error))
      except _DAMAGED as error:
        said = f'{type(error).__name__}: {error}'
        problems.append(f'{source} cannot be read ({" ".join(said.split())})')
      else:
        runs += [run] if run else []
  if not runs and not problems:
    where = ', '.join(str(path) for path in paths)
    raise UserError(f'there is no run in {where}')
  return runs, problems


def _sources(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields run folders and JSON files, in the order of their names."""
  if path.is_file():
    yield path
    return
  for place, folders, names in os.walk(path):
    here = pathlib.Path(place)
    if 'config.json' in names:
      # Weights alone have a config.json, too.
      if 'metrics.jsonl' in names:
        yield here
      folders[:] = sorted(set(folders) - set(_INNER))
      continue
    folders.sort()
    yield from (here / name for name in sorted(names) if name.endswith('.json'))


def _read(source: pathlib.Path) -> Run | None:
  """Returns a run; None of a JSON file that is something else."""
  if source.is_dir():
    return _make(
        source,
        config=_json(source / 'config.json'),
        epochs=[
            entry
            for entry in metrics_log.read_metrics(source)
            if entry['kind'] == 'epoch'
        ],
        summary=_json(source / 'summary.json'),
        data=_json(source / 'data.json'),
        latency=_json(source / 'latency.json'),
        environment=_json(source / 'environment.json'),
    )
  fields = _json(source)
  if not isinstance(fields, dict) or not {'config', 'epochs'} <= fields.keys():
    return None
  return _make(source, **{name: fields.get(name) for name in _COLLECTED})


_COLLECTED = 'config epochs summary data latency environment'.split()


def _make(source, *, config, epochs, summary, data, latency, environment):
  config = recipes.from_json(config, str(source))
  if data is None and config.data.name in datasets.NAMES:
    data = dataclasses.asdict(datasets.info(config.data.name))
  if summary is not None:
    closing.check(summary, str(source))
  current = summary and epochs and summary['steps'] == epochs[-1]['step']
  return Run(
      source,
      config,
      epochs,
      summary=summary if current else None,
      num_classes=len(data['class_names']) if data else None,
      image_size=tuple(data['image_size']) if data else None,
      latency=latency['milliseconds'] if latency else None,
      latency_of=latency or {},
      device=environment[-1]['device'] if environment else '',
  )


def _json(path):
  return files.read_json(path) if path.exists() else None
