"""Identifies the data set and records that a run trains on: `data.json`."""

from collections.abc import Mapping
import dataclasses
import pathlib

import ml_collections

from gswinrmt_jax import files
from gswinrmt_jax.data import datasets, sources, token_labels
from gswinrmt_jax.errors import UserError

_FILE = 'data.json'


@dataclasses.dataclass(frozen=True)
class Identity:
  """Identifies the records of a split.

  Attributes:
    version: Version of the data set; empty if it has none.
    records: Number of records.
    order: Checksum of their order, by `Source.order_checksum`.
    labels: Checksum of the label images and of the values of classes and of no
      class; '' for classification, in old runs and of sets prepared without it.
    content: Checksum of stored images and labels, by
      `Source.content_checksum`; '' in old runs.
    split: The split or slices that they are; '' in old runs.
  """

  version: str
  records: int
  order: str
  labels: str = ''
  content: str = ''
  split: str = ''


@dataclasses.dataclass(frozen=True)
class ImageSpec:
  """Specification of the images that a run's weights are for.

  Attributes:
    info: The data set, with the image size that the model sees.
    crop: Share of the resized image that evaluation keeps, see
      `resizing.center_crop`.
    splits: Identities of 'train', 'val' and any 'test'; empty in old runs.
    maps: Checksum of the label maps used in training; '' if none.
  """

  info: datasets.Info
  crop: float = 1.0
  splits: Mapping[str, Identity] = dataclasses.field(default_factory=dict)
  maps: str = ''

  def write(self, folder: pathlib.Path, *, replace: bool = True) -> None:
    """Writes `data.json` into a run folder.

    A start without a test split keeps what an earlier one recorded of it.

    Args:
      folder: The run folder.
      replace: Whether to replace an earlier one.

    Raises:
      UserError: If the run was started with other data; names what differs.
    """
    path = folder / _FILE
    before = _read(path) if path.exists() else self
    if differing := self._differences(before):
      raise UserError(
          f'{self.info.name} is not the data that {folder} was started with: '
          f'in {_FILE} {", ".join(differing)}; choose another --workdir'
      )
    if replace or not path.exists():
      splits = {**before.splits, **self.splits}
      files.write_json(path, dataclasses.replace(self, splits=splits)._fields())

  def _fields(self):
    fields = dataclasses.asdict(self)
    return {
        **fields['info'],
        'crop': self.crop,
        'label_maps': self.maps,
        'splits': fields['splits'],
    }

  def _differences(self, before):
    """Lists what differs from an earlier record."""
    old, new = before._fields(), self._fields()
    old_splits, new_splits = old.pop('splits'), new.pop('splits')
    differing = [f'{name} differs' for name in old if old[name] != new[name]]
    for split in sorted(old_splits.keys() & new_splits.keys()):
      before, now = old_splits[split], new_splits[split]
      if split == 'test' and before['split'] != now['split']:
        continue  # A run may be tested on another split.
      for name, value in before.items():
        here, unknown = now[name], value == ''  # as in old runs
        if value != here and not (unknown and name != 'version'):
          said = f'is {value!r} there and {here!r} here'
          if name in ('order', 'labels', 'content'):  # checksums
            said = 'differs'
          differing.append(f'{name} of {split} {said}')
    return differing


def of_run(
    config: ml_collections.ConfigDict,
    info: datasets.Info,
    opened: Mapping[str, sources.Source],
    maps: token_labels.TokenLabels | None,
) -> ImageSpec:
  """Returns the record of a run; reads keys of its data for checksums.

  Args:
    config: The run's config.
    info: The data set.
    opened: The stored records of 'train', 'val' and, if there is one, 'test'.
    maps: Label maps of the training records, or None.
  """
  data = config.data
  # Without resizing, images are evaluated whole.
  crop = data.eval_crop if data.image_size else 1.0
  splits = {
      name: _identity(source, data[f'{name}_split'])
      for name, source in opened.items()
  }
  return ImageSpec(info, crop, splits, maps.checksum if maps else '')


def is_other(
    folder: pathlib.Path, split: str, taken: str, source: sources.Source
) -> bool:
  """Whether a split of the data has changed since a run recorded it.

  False if the run recorded another split, or none.

  Args:
    folder: The run folder.
    split: 'train', 'val' or 'test'.
    taken: The split of the data set, as in the run's config.
    source: The records of this split.
  """
  path = folder / _FILE
  before = _read(path).splits.get(split) if path.exists() else None
  if before is None or before.split != taken:
    return False
  now = dataclasses.asdict(_identity(source, taken))
  old = dataclasses.asdict(before)
  return any(old[name] not in ('', now[name]) for name in old)


def read(folder: pathlib.Path, recipe: ml_collections.ConfigDict) -> ImageSpec:
  """Returns the record of a run; does not need the data itself.

  Raises:
    UserError: If it is damaged, or missing and the data set is unknown.
  """
  path = folder / _FILE
  if not path.exists():  # an old run
    return ImageSpec(datasets.info(recipe.data.name, recipe.data.dir))
  return _read(path)


def _read(path: pathlib.Path) -> ImageSpec:
  try:
    fields = dict(files.read_json(path))
    crop, maps = fields.pop('crop'), fields.pop('label_maps', '')
    if not 0 <= crop <= 1:
      raise ValueError(f'crop {crop} must be from 0 to 1')
    splits = fields.pop('splits', {})
    for name in ('class_names', 'mean', 'std', 'image_size'):
      fields[name] = tuple(fields[name])
    return ImageSpec(
        datasets.Info(**fields),
        crop,
        {name: Identity(**splits[name]) for name in splits},
        maps,
    )
  except (ValueError, TypeError, LookupError, ArithmeticError) as error:
    raise UserError(f'{path} cannot be read: {error}') from error


def _identity(source: sources.Source, split: str) -> Identity:
  return Identity(
      source.version,
      len(source),
      source.order_checksum(),
      source.label_checksum,
      source.content_checksum(),
      split,
  )
