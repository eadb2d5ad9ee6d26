"""Reads the archives in which CIFAR-10 is distributed, without unpacking."""

import gzip
import hashlib
import io
import pathlib
import pickle
import tarfile

import numpy as np

from gswinrmt_jax.errors import UserError

# Of the original archives: binary (TFDS has it too) and python.
SHA256 = (
    'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',
    '6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce',
)
NUM_CLASSES = 10
IMAGES_PER_CLASS = {'train': 5000, 'test': 1000}
BATCHES = {
    'train': tuple(f'data_batch_{i}' for i in range(1, 6)),
    'test': ('test_batch',),
}

_RECORD = 1 + 3 * 32 * 32  # bytes: the label, then the planes R, G and B
# Per split: uint8 images [n 3 32 32] and their labels [n].
Records = tuple[np.ndarray, np.ndarray]


def read(path: pathlib.Path) -> dict[str, Records]:
  """Returns the records of cifar-10-binary.tar.gz or cifar-10-python.tar.gz.

  Nothing is unpacked to disk, and of the pickles in the python archive only
  arrays and plain containers are loaded.

  Raises:
    UserError: If the file is unreadable, truncated, corrupt or incomplete.
  """
  try:
    files = _read_batch_files(path)
    binary = any(name.endswith('.bin') for name in files)
    suffix, parse = ('.bin', _parse_binary) if binary else ('', _parse_python)
    missing = [
        name + suffix
        for names in BATCHES.values()
        for name in names
        if name + suffix not in files
    ]
    records = {}
    for split, names in BATCHES.items() if not missing else ():
      parts = [parse(files[name + suffix]) for name in names]
      images, labels = map(np.concatenate, zip(*parts, strict=True))
      records[split] = images, labels
    found = {k: np.bincount(v[1], minlength=10) for k, v in records.items()}
  except Exception as error:
    # gzip, tarfile and pickle fail on bad bytes with a dozen exceptions.
    raise UserError(
        f'cannot read the archive {path} '
        f'({getattr(error, "strerror", None) or error}); is it whole?'
    ) from error
  if missing:
    raise UserError(
        f'{path} is neither cifar-10-binary.tar.gz nor '
        f'cifar-10-python.tar.gz: {missing[0]} is not in it'
    )
  for split, count in IMAGES_PER_CLASS.items():
    if found[split].tolist() != [count] * NUM_CLASSES:
      raise UserError(
          f'{path} is not complete: {split} holds {found[split].tolist()} '
          f'images a class, not {count} of each'
      )
  return records


def _read_batch_files(path: pathlib.Path) -> dict[str, bytes]:
  wanted = {name for names in BATCHES.values() for name in names}
  files = {}
  with gzip.open(path) as stream:
    with tarfile.open(fileobj=stream, mode='r|') as tar:
      for member in tar:
        name = pathlib.PurePosixPath(member.name).name
        if member.isfile() and name.removesuffix('.bin') in wanted:
          files[name] = tar.extractfile(member).read()
    while stream.read(2**20):  # To the end, where gzip keeps its checksum.
      pass
  return files


def _parse_binary(content: bytes) -> Records:
  rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
  return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _parse_python(content: bytes) -> Records:
  batch = _ArrayUnpickler(io.BytesIO(content), encoding='bytes').load()
  if not isinstance(batch, dict) or not {b'data', b'labels'} <= batch.keys():
    raise pickle.UnpicklingError('a batch is not a dict of data and labels')
  labels = np.array(batch[b'labels'], np.int64)
  return batch[b'data'].reshape(len(labels), 3, 32, 32), labels


# The names by which numpy of 2009 pickled an array, and what they stand for
# here: functions that can do nothing but begin an empty array of bytes.
_PICKLED_NAMES = {
    ('numpy.core.multiarray', '_reconstruct'): lambda *_: np.empty(0, np.uint8),
    ('numpy', 'ndarray'): None,  # An argument of the first, never called.
    ('numpy', 'dtype'): lambda *_: np.dtype(np.uint8, copy=True),
}


class _ArrayUnpickler(pickle.Unpickler):
  """Loads plain containers and uint8 arrays; refuses every other name."""

  def find_class(self, module: str, name: str):
    if (module, name) not in _PICKLED_NAMES:
      raise pickle.UnpicklingError(f'refused to load {module}.{name}')
    return _PICKLED_NAMES[module, name]


def say_if_not_original(archive: pathlib.Path) -> None:
  """Prints a line if the file is none of the original archives."""
  try:
    with archive.open('rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
  except OSError as error:
    raise UserError(
        f'cannot read the archive {archive}: {error.strerror}'
    ) from error
  if digest not in SHA256:
    print(
        f'cifar10: {archive} is not the original archive (SHA-256 {digest}); '
        'results may differ from those on the original'
    )
