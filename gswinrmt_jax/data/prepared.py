"""Prepared data sets, in TFDS's format: finds and opens them."""

import os
import pathlib
import re
from typing import Any

from gswinrmt_jax.errors import UserError

# Data sets that `gswinrmt prepare NAME` writes; others need a kind and a name.
BY_NAME = ('cifar10', 'imagenet', 'mini_imagenet')

AGAIN = (
    'remove that folder and prepare the data set again (class folders need '
    'no preparation)'
)
_VERSION = re.compile(r'\d+\.\d+\.\d+')


def data_root(data_dir: str) -> pathlib.Path:
  """Returns the TFDS data directory; by default TFDS_DATA_DIR or TFDS's own.

  Raises:
    UserError: If it is the address of another machine.
  """
  root = data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets'
  if '://' in str(root):
    raise UserError(
        f'{root} is an address: data sets are in a folder of this machine; '
        'name one with --config.data.dir, --data-dir, --dir or TFDS_DATA_DIR'
    )
  root = os.path.expanduser(root)
  if root.startswith('~/'):
    raise UserError(f'{root}: there is no home; set TFDS_DATA_DIR')
  return pathlib.Path(root).absolute()


def names(data_dir: str) -> list[str]:
  """Returns the names of the data sets prepared in a data directory."""
  root = data_root(data_dir)
  if not root.is_dir():
    return []
  found = (path.name for path in root.iterdir() if path.name[0] != '.')
  return sorted(name for name in found if _versions(root / name))


def open_newest(name: str, data_dir: str) -> Any | None:
  """Returns the TFDS builder of the newest version, or None if there is none.

  Raises:
    UserError: As in `open_version`.
  """
  if not re.fullmatch(r'\w[\w.-]*', name):
    return None
  folder = data_root(data_dir) / name
  versions = _versions(folder)
  return open_version(folder / versions[-1]) if versions else None


def open_version(folder: pathlib.Path) -> Any | None:
  """Returns the TFDS builder of DIR/NAME/VERSION, or None if it is missing.

  Raises:
    UserError: If it cannot be read, perhaps since it is half written or
      damaged; or if its files are not array_record, which alone can be read
      without TensorFlow.
  """
  import tensorflow_datasets as tfds

  if not folder.exists():
    return None
  try:
    builder = tfds.builder_from_directory(folder)
    missing = [
        path.name
        for split in builder.info.splits.values()
        for path in split.filepaths
        if not path.exists()
    ]
    # Reading the metadata shows its damage. What `prepare` writes has some,
    # unless it has one label for each image.
    known, features = dict(builder.info.metadata or {}), builder.info.features
    own = (folder / 'report.json').exists() and 'label' not in features
    if own and not known:
      missing.append('metadata.json')
  except Exception as error:
    # TFDS raises many types for a missing or broken description.
    missing = [str(error).strip().split('\n')[0] or type(error).__name__]
  if missing:
    raise UserError(
        f'{folder} cannot be read ({missing[0]}): if it is half written or '
        f'damaged, {AGAIN}'
    )
  if builder.info.file_format.value != 'array_record':
    raise UserError(
        f'{folder} holds {builder.info.file_format.value} files, which only '
        'TensorFlow reads; choose another folder with --dir, '
        '--config.data.dir or TFDS_DATA_DIR and prepare there'
    )
  return builder


def _versions(folder):
  """Returns the versions in a data set's folder, the newest last."""
  found = (path.parent.name for path in folder.glob('*.*.*/dataset_info.json'))
  versions = [name for name in found if _VERSION.fullmatch(name)]
  return sorted(versions, key=lambda v: [int(part) for part in v.split('.')])
