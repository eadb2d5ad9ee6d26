"""Training that is fed beside training that is not: what is asked and told."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from gswinrmt_jax.benchmark import made_pictures, measure, record
from gswinrmt_jax.errors import UserError

Spec = dict[str, Any]

# Images that the paper trains on of Mini-ImageNet: 500 of each of 100 classes.
EPOCH = 50_000
_STORED = (500, 375)  # about what ImageNet's pictures have
_SMALL = 32  # pixels; such pictures are stored as they are trained on
_HEAD = ('', 'ms/step', '±', 'img/s', 'of without', f's/{EPOCH:,}', 'peak GB')


@dataclasses.dataclass(frozen=True)
class Feeding:
  """What training is fed from.

  Attributes:
    storages: Values of `config.data.storage`.
    images: How many pictures are made up.
    workers: Processes that decode; None for as many as the recipe says.
  """

  storages: Sequence[str]
  images: int
  workers: int | None

  def arms(self, spec: Spec, folder: pathlib.Path) -> dict[str, Spec]:
    """Returns specs for `fed_arms`, by name: without, then of each storage.

    Args:
      spec: Of a model.
      folder: Where the pictures are.
    """
    shared = {**spec, 'dir': str(folder), 'workers': self.workers}
    name = spec['model']
    arms = {f'{name}, without': {**shared, 'storage': None}}
    for storage in self.storages:
      arms[f'{name}, {storage}'] = {**shared, 'storage': storage}
    return arms

  def prepare(self, spec: Spec, folder: pathlib.Path) -> None:
    """Makes the pictures, with as many classes as the model.

    Raises:
      UserError: If there are fewer pictures than classes.
    """
    classes, size = spec['classes'], spec['image_size']
    if self.images < classes:
      raise UserError(
          f'--images {self.images}: there are {classes} classes, each of which '
          'needs one; --classes takes fewer'
      )
    width, height = (size, size) if size <= _SMALL else _STORED
    made_pictures.prepare(
        folder, self.images, classes=classes, width=width, height=height
    )


def rows(
    outcomes: Sequence[measure.Measured], rates: Mapping[str, float]
) -> list[dict[str, Any]]:
  """Returns the arms of a group; the first is the one without a feed.

  Beside what `record.rows` has, a call being a dispatch of 'steps' steps:

  - 'step_milliseconds'
  - 'of_without': images a second over those of the first, by the median over
    the rounds.
  - 'seconds_of_50000_images'
  """
  found = record.rows(outcomes, rates)
  for row, outcome in zip(found, outcomes, strict=True):
    if outcome.taken is None:
      continue
    row['step_milliseconds'] = row['milliseconds'] / outcome.facts['steps']
    row['of_without'] = record.times_as_fast(outcome, outcomes[0])
    row['seconds_of_50000_images'] = EPOCH / row['images_per_second']
  return found


def table(found: Sequence[record.Row]) -> str:
  """Returns rows as a table of Markdown, reasons below it."""
  return record.lay_out(found, _HEAD, _cells)


def _cells(row):
  of_without = row['of_without']
  return (
      row['arm'],
      f'{row["step_milliseconds"]:.4g}',
      f'{row["spread"]:.1%}',
      f'{row["images_per_second"]:.4g}',
      f'{of_without:.3f}' if of_without else '',
      f'{row["seconds_of_50000_images"]:,.1f}',
      record.peak(row),
  )
