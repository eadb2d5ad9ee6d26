"""Where TFDS keeps prepared data sets, and what is there."""

import os
import pathlib
import re
from typing import Any

from gswinrmt_jax.errors import UserError

FOLDER_VERSION = '1.0.0'  # of every data set made from a user's image files
_VERSION = re.compile(r'\d+\.\d+\.\d+')


def data_root(data_dir: str) -> pathlib.Path:
  """Returns the TFDS data directory; empty means TFDS's own default."""
  root = data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  return pathlib.Path(root).expanduser().absolute()


def names(data_dir: str) -> list[str]:
  """Returns the names of the data sets that are prepared there."""
  root = data_root(data_dir)
  if not root.is_dir():
    return []
  found = (path.name for path in root.iterdir() if path.name[0] != '.')
  return sorted(name for name in found if _versions(root / name))


def command(name: str) -> str:
  """Returns the command that prepares a data set."""
  own = name in ('cifar10', 'imagenet', 'mini_imagenet')
  return f'gswinrmt prepare {name if own else f"folder {name}"}'


def open_newest(name: str, data_dir: str) -> Any | None:
  """Returns the TFDS builder of the newest version, None if there is none.

  Raises:
    UserError: If it is half written or damaged, or is not images with one of
      two or more classes each.
  """
  folder = data_root(data_dir) / name
  plain = re.fullmatch(r'\w[\w.-]*', name)
  versions = _versions(folder) if plain else []
  if not versions:
    return None
  builder = open_version(folder / versions[-1])
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


def open_version(folder: pathlib.Path) -> Any | None:
  """Returns the TFDS builder of DIR/NAME/VERSION, None if it is not there.

  Raises:
    UserError: If the folder is half written, or holds another format than
      array_record, the one that is read without TensorFlow.
  """
  import tensorflow_datasets as tfds

  if not folder.exists():
    return None
  try:
    builder = tfds.builder_from_directory(folder)
    shards = [
        path
        for split in builder.info.splits.values()
        for path in split.filepaths
    ]
    missing = [path.name for path in shards if not path.exists()]
  except Exception as error:
    # TFDS reports a missing or broken description in many ways.
    missing = [str(error).strip().split('\n')[0] or type(error).__name__]
  if missing:
    raise UserError(
        f'{folder} is half written or damaged ({missing[0]}); remove that '
        f'directory and run `{command(folder.parent.name)}`'
    )
  if builder.info.file_format.value != 'array_record':
    raise UserError(
        f'{folder} holds {builder.info.file_format.value} files, which only '
        'TensorFlow reads; choose another directory with --dir, '
        '--config.data.dir or TFDS_DATA_DIR and prepare there'
    )
  return builder


def _versions(folder: pathlib.Path) -> list[str]:
  """Returns the versions in a data set's folder, the newest last."""
  found = [path.parent.name for path in folder.glob('*.*.*/dataset_info.json')]
  found = [version for version in found if _VERSION.fullmatch(version)]
  return sorted(found, key=lambda v: [int(part) for part in v.split('.')])
