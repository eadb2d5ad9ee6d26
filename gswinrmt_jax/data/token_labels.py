"""Label maps on disk: a teacher's per-position classes for each record.

The format is described in docs/token_labels.md.
"""

from collections.abc import Iterable
import dataclasses
import hashlib
import json
import os
import pathlib

import numpy as np

from gswinrmt_jax import files
from gswinrmt_jax.data import datasets
from gswinrmt_jax.errors import UserError

VERSION = 1
_META, _INDEX, _SCORE = 'meta.json', 'index.npy', 'score.npy'
_EXCESS = 0.01  # allowed excess over 1 of the sum of half-precision scores


@dataclasses.dataclass(frozen=True, eq=False)
class TokenLabels:
  """The label maps of a split, memory-mapped.

  Attributes:
    index: Classes, uint16 [n s t m].
    score: Their probabilities, float16 [n s t m].
    checksum: Checksum of both, computed when they were written.
  """

  index: np.ndarray
  score: np.ndarray
  checksum: str

  def gather(self, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Returns 'map_index' and 'map_score' [b s t m] of these rows."""
    return {'map_index': self.index[rows], 'map_score': self.score[rows]}


def write(
    folder: str | os.PathLike[str],
    maps: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    name: str,
    split: str,
    data_dir: str = '',
) -> None:
  """Writes the label maps of a split atomically.

  Args:
    folder: Folder to create.
    maps: For each record, in the order of the split: classes and
      their probabilities, both `[s t m]`, for a grid of s rows and t columns
      over the whole image and m classes per cell.
    name: Name of the data set.
    split: Split or slice, as in a run's `config.data.train_split`.
    data_dir: As in `datasets.info`.

  Raises:
    UserError: If the folder exists, or a map is invalid; the message then names
      the record.
  """
  folder = pathlib.Path(folder)
  if folder.exists():
    raise UserError(f'{folder} is there already: choose another')
  meta = _expected(name, split, data_dir)
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.replaced(folder) as part:
      part.mkdir()
      meta['checksum'] = _write_arrays(
          part, maps, meta['records'], meta['classes']
      )
      (part / _META).write_text(json.dumps(meta, indent=2) + '\n')
  except OSError as error:
    reason = error.strerror or error
    raise UserError(f'cannot write {folder}: {reason}') from error


def open_maps(
    folder: str | os.PathLike[str],
    *,
    name: str,
    split: str,
    data_dir: str = '',
) -> TokenLabels:
  """Opens the label maps of a split; arguments as in `write`.

  Raises:
    UserError: If they belong to other records, another order or other classes,
      or are damaged.
  """
  folder = pathlib.Path(folder)
  try:
    meta = json.loads((folder / _META).read_text())
    index = np.load(folder / _INDEX, mmap_mode='r')
    score = np.load(folder / _SCORE, mmap_mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise UserError(f'{folder} has no label maps: {error}') from error
  expected = _expected(name, split, data_dir)
  if isinstance(meta.get('name'), str):  # once, the path of class folders
    meta['name'] = pathlib.Path(meta['name']).name
  for field, wanted in expected.items():
    if (found := meta.get(field)) != wanted:
      raise UserError(
          f'the label maps in {folder} are not for {name} {split!r}: '
          f'{field} is {found!r} there and {wanted!r} here'
      )
  if 'checksum' not in meta:
    raise UserError(f'{folder} is damaged: {_META} has no checksum')
  found = [(a.dtype, a.shape) for a in (index, score)]
  shape = (expected['records'], *index.shape[1:])
  if index.ndim != 4 or found != [(np.uint16, shape), (np.float16, shape)]:
    raise UserError(
        f'{folder} is damaged: {_INDEX} is {index.dtype} {index.shape} and '
        f'{_SCORE} {score.dtype} {score.shape}, not uint16 and float16 '
        f'[{shape[0]} s t m]'
    )
  return TokenLabels(index, score, meta['checksum'])


def _expected(name, split, data_dir):
  """Returns the expected `meta.json` of a split's maps, without checksum."""
  source = datasets.open_source(name, split, data_dir)
  info = datasets.info(name, data_dir)
  class_names = info.class_names
  listed = ''.join(f'{class_name}\n' for class_name in class_names)
  return {
      'version': VERSION,
      'name': info.name,  # of class folders: the last part of their path
      'split': split,
      'records': len(source),
      'classes': len(class_names),
      'class_names': hashlib.sha256(listed.encode()).hexdigest(),
      'order': source.order_checksum(),
  }


def _write_arrays(part, maps, count, num_classes):
  """Writes the arrays record by record and returns their checksum.

  They are not memory-mapped: on a full disk, that would kill the process.
  """
  digest = hashlib.sha256()
  shape, row = None, -1
  with (
      open(part / _INDEX, 'wb') as index,
      open(part / _SCORE, 'wb') as score,
  ):
    for row, (classes, probabilities) in enumerate(maps):
      classes, probabilities = np.asarray(classes), np.asarray(probabilities)
      parts = (
          (index, np.dtype(np.uint16), classes),
          (score, np.dtype(np.float16), probabilities),
      )
      if shape is None:
        shape = classes.shape
        for file, kind, _ in parts:
          header = {'descr': kind.str, 'fortran_order': False}
          header['shape'] = (count, *shape)
          np.lib.format.write_array_header_1_0(file, header)
      if row >= count:  # Surplus maps are counted for the message.
        continue
      problem = _problem(classes, probabilities, shape, num_classes)
      if problem:
        raise UserError(f'the label map of record {row} {problem}')
      for file, kind, array in parts:
        content = array.astype(kind).tobytes()
        file.write(content)
        digest.update(content)
  if row + 1 != count:
    raise UserError(f'there are {row + 1} label maps for {count} records')
  return digest.hexdigest()


def _problem(classes, probabilities, shape, num_classes):
  """Returns what is wrong with a map, or '' if it is valid."""
  shapes = classes.shape, probabilities.shape
  if classes.ndim != 3 or shapes != (shape,) * 2 or not classes.size:
    said = f'has shapes {shapes[0]} and {shapes[1]}'
    return f'{said}, not [s t m] twice, as the first record'
  if not np.issubdtype(classes.dtype, np.integer):
    return f'has classes that are {classes.dtype}, not whole numbers'
  if not (0 <= classes.min() and classes.max() < num_classes):
    return f'has classes outside of 0 to {num_classes - 1}'
  # Written so that NaN is out of range too.
  if not (
      probabilities.min() >= 0
      and probabilities.astype(np.float64).sum(-1).max() <= 1 + _EXCESS
  ):
    return 'has scores that are not probabilities'
  return ''
