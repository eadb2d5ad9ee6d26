"""What TFDS has prepared below its data directory, by name."""

import pathlib
import re
from typing import Any

from gswinrmt_jax.data import prepared, sources
from gswinrmt_jax.errors import UserError

_VERSION = re.compile(r'\d+\.\d+\.\d+')


def names(data_dir: str) -> list[str]:
  """Returns the names of the data sets that are prepared there."""
  root = prepared.data_root(data_dir)
  if not root.is_dir():
    return []
  found = (path.name for path in root.iterdir() if path.name[0] != '.')
  return sorted(name for name in found if _versions(root / name))


def open_builder(name: str, data_dir: str) -> Any | None:
  """Returns the TFDS builder of the newest version, None if there is none.

  Raises:
    UserError: If it is half written or damaged, or does not hold images with
      one of two or more classes each.
  """
  plain = re.fullmatch(r'\w[\w.-]*', name)
  versions = _versions(prepared.data_root(data_dir) / name) if plain else []
  if not versions:
    return None
  builder = prepared.open_prepared(name, versions[-1], data_dir, splits=())
  path, features = builder.data_path, builder.info.features
  if not {'image', 'label'} <= set(features) or not hasattr(
      features['label'], 'num_classes'
  ):
    raise UserError(
        f'{path} holds {", ".join(sorted(features))}: images for '
        'classification have image and label, one of the classes'
    )
  if (features['label'].num_classes or 0) < 2:
    raise UserError(
        f'{path} has fewer than two classes: there is nothing to tell apart'
    )
  return builder


def open_split(
    name: str, split: str, data_dir: str
) -> sources.TfdsSource | None:
  """Returns the records of a split; None if there is no such data set.

  Raises:
    UserError: As `open_builder`, or if there is no such split.
  """
  builder = open_builder(name, data_dir)
  if builder is None:
    return None
  mend = f'remove that directory and run `{prepared.command(name)}`'
  return sources.TfdsSource(builder, split, mend)


def _versions(folder: pathlib.Path) -> list[str]:
  """Returns the versions below a data set's directory, the newest last."""
  found = [path.parent.name for path in folder.glob('*.*.*/dataset_info.json')]
  found = [version for version in found if _VERSION.fullmatch(version)]
  return sorted(found, key=lambda v: [int(part) for part in v.split('.')])
